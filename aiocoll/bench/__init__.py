"""``aiocoll bench``: how long the collectives take on this machine, next to what the machine itself can do.

Rule: what is timed is the call and nothing else, through the methods that users call; every result is checked; and a
number is never shown without the size, the count of calls and the transport that it belongs to.

request.py   what is to be measured: sizes, dtypes, ops       arguments.py  the command line
pattern.py   data that differ per rank, element and call      cases.py      how each collective is called and checked
callers.py   the three ways to call: facade, group, await     measure.py    one row: verify, warm up, time
floor.py     what copies, shared memory and sockets can do    records.py    rows, bandwidths, and their JSON
table.py     text, Markdown, CSV                              saved.py      --save and --diff
plot.py      --plot                                           screen.py     rows as they come, and the progress bar
rank.py      the program of each rank                         command.py    starts the ranks, or is one of them
"""
