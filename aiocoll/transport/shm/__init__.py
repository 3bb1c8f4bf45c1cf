"""Links through shared memory between the ranks of one host.

    segment    one rank's memory: lanes of slots, cells, flags
    meeting    how local ranks find one another, prove themselves and agree that they share memory
    slot       what lanes are made of
    outlane    frames into the lane to one peer; inlane: frames out of the lane from it; stamp: frames that come again
    order      who keeps order among what is written: the processor, or the kernel; litmus: whether the kernel does
    link       an ordered pipe of frames to one local peer
    transport  all of them, and when this rank sleeps
    heap       arrays that live in shared memory, so that sending one passes a reference
    arena      the memory file that arrays are cut from; extents: what of it is free
    headroom   how much memory could still be had
    peer_heap  one peer's arrays, read where they lie
    loans      references to arrays, and who has been given which arena
    private    what lies elsewhere in a peer's memory, read where the kernel lets one

The rule: whoever writes a word owns it; what a peer wrote is checked before it is used.
"""
