"""Frames to and from one peer, in order: asyncio starts here."""
