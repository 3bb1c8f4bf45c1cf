"""Bytes on the wire, sans-I/O: frames, codecs and the handshake; no sockets, no clock, and a limit on everything."""
