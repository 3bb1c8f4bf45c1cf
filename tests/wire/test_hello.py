"""The handshake: both sides end up sure of each other, or with an error that says why not, whatever arrives."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiocoll.errors import AuthenticationError, UsageError, WireError
from aiocoll.wire import hello
from aiocoll.wire.hello import (
    HELLO_BYTES,
    PROOF_BYTES,
    RANK,
    STORE_CLIENT,
    STORE_SERVER,
    ClientHello,
    Identity,
    NotOurs,
    Reason,
    Refused,
    ServerHello,
    Theirs,
)

SECRET = b"0123456789abcdef"


def client(
    secret: bytes = SECRET, job: str = "job", rank: int = 2, peer: int = 0, size: int = 4, world: int = 77
) -> ClientHello:
    return ClientHello(secret, Identity(RANK, job, rank, peer, size, world), RANK)


def server(
    secret: bytes = SECRET, job: str = "job", rank: int = 0, size: int = 4, world: int = 77, **kw
) -> ServerHello:
    return ServerHello(secret, Identity(RANK, job, rank, 0, size, world), **kw)


def talk(c: ClientHello, s: ServerHello) -> tuple[Exception | None, Exception | None]:
    """Carry bytes until both are done or one fails; what each side raised."""
    errors: list[Exception | None] = [None, None]
    to_server, to_client = c.start(), b""
    while to_server or to_client:
        if to_server and errors[1] is None:
            try:
                to_client += s.feed(to_server)
            except Exception as error:
                errors[1] = error
                to_client += s.last_words
        to_server = b""
        if to_client and errors[0] is None:
            try:
                to_server += c.feed(to_client)
            except Exception as error:
                errors[0] = error
                to_server += c.last_words
        to_client = b""
    return errors[0], errors[1]


def test_two_ranks_prove_themselves() -> None:
    c, s = client(), server()
    assert talk(c, s) == (None, None)
    assert c.done and s.done
    assert c.theirs == Theirs(RANK, 0, 2, 4, 77)
    assert s.theirs == Theirs(RANK, 2, 0, 4, 77)


def test_store_roles() -> None:
    c = ClientHello(b"", Identity(STORE_CLIENT, ""), STORE_SERVER)
    s = ServerHello(b"", Identity(STORE_SERVER, ""))
    assert talk(c, s) == (None, None)
    assert c.done and s.done and s.theirs is not None and s.theirs.role == STORE_CLIENT


@given(st.lists(st.integers(1, 40), max_size=20), st.binary(max_size=50))
def test_any_split_and_what_follows_is_kept(cuts: list[int], more: bytes) -> None:
    c, s = client(), server()

    def drip(machine: ClientHello | ServerHello, data: bytes) -> bytes:
        out, at = b"", 0
        for cut in [*cuts, len(data)]:
            out += machine.feed(data[at : at + cut])
            at += cut
            if at >= len(data):
                break
        return out

    answer = drip(s, c.start())
    proof = drip(c, answer + b"early")
    drip(s, proof + more)
    assert c.done and s.done
    assert c.leftover == b"early"
    assert s.leftover == more


def test_messages_have_fixed_sizes() -> None:
    c, s = client(), server()
    assert len(c.start()) == HELLO_BYTES
    answer = s.feed(c.start())
    assert len(answer) == HELLO_BYTES + PROOF_BYTES
    assert len(c.feed(answer)) == PROOF_BYTES


def test_wrong_secret_fails_on_both_sides() -> None:
    c, s = client(secret=b"other"), server()
    mine, theirs = talk(c, s)
    assert isinstance(mine, AuthenticationError) and "secret" in str(mine) and "aiocoll run" in str(mine)
    assert isinstance(theirs, AuthenticationError) and "secret" in str(theirs) and "rank 2 of 4" in str(theirs)
    assert not c.done and not s.done


def test_no_secret_against_a_secret() -> None:
    mine, theirs = talk(client(secret=b""), server())
    assert isinstance(mine, AuthenticationError) and isinstance(theirs, AuthenticationError)


@pytest.mark.parametrize(
    ("other", "reason", "words"),
    [
        ({"job": "another"}, Reason.JOB, "another job"),
        ({"peer": 1}, Reason.ADDRESSEE, "another rank"),
        ({"world": 78}, Reason.WORLD, "another world"),
        ({"size": 5}, Reason.WORLD, "another world"),
        ({"rank": 4}, Reason.ADDRESSEE, "another rank"),
        ({"rank": 0}, Reason.ADDRESSEE, "another rank"),
    ],
)
def test_refusals_say_why_on_both_sides(other: dict, reason: Reason, words: str) -> None:
    mine, theirs = talk(client(**other), server())
    assert isinstance(mine, Refused) and mine.reason is reason and words in str(mine)
    assert isinstance(theirs, Refused) and theirs.reason is reason


def test_wrong_role_is_refused() -> None:
    c = ClientHello(SECRET, Identity(STORE_CLIENT, "job"), STORE_SERVER)
    mine, theirs = talk(c, server())
    assert isinstance(mine, Refused) and mine.reason is Reason.ROLE
    assert isinstance(theirs, Refused) and "store client" in str(theirs)


def test_other_version_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    c, s = client(), server()
    monkeypatch.setattr(hello, "VERSION", 9)
    theirs: Exception | None = None
    old = c.start()
    try:
        s.feed(old[:8])  # eight bytes are enough to know
    except Refused as error:
        theirs = error
    assert theirs is not None and "version 1" in str(theirs) and "9" in str(theirs)
    refusal = s.last_words
    monkeypatch.undo()
    with pytest.raises(Refused, match="version 9") as info:
        c.feed(refusal)
    assert info.value.reason is Reason.VERSION


def test_admit_refuses_before_the_proof() -> None:
    seen: list[Theirs] = []

    def admit(theirs: Theirs) -> None:
        seen.append(theirs)
        raise Refused("rank 2 is connected already", Reason.DUPLICATE)

    s = server(admit=admit)
    mine, theirs = talk(client(), s)
    assert [t.rank for t in seen] == [2]
    assert len(s.last_words) == HELLO_BYTES  # no proof in it
    assert isinstance(mine, Refused) and mine.reason is Reason.DUPLICATE and "already has a connection" in str(mine)
    assert "connected already" in str(theirs)


def test_something_else_answers() -> None:
    c = client()
    with pytest.raises(NotOurs, match="HTTP/1.1 400") as info:
        c.feed(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 1000)
    assert len(info.value.first) == 64
    assert isinstance(info.value, WireError)
    with pytest.raises(WireError, match="already"):
        c.feed(b"more")


def test_first_wrong_byte_is_enough() -> None:
    with pytest.raises(NotOurs):
        server().feed(b"ai0")


def test_reflected_hello_fails() -> None:
    c = client()
    with pytest.raises(AuthenticationError, match="secret"):
        c.feed(c.start() + bytes(PROOF_BYTES))


def test_own_answer_reflected_between_two_connections() -> None:
    """A thief relays rank 2's hello back to rank 2 itself: the labels and addressees differ, so nothing fits."""
    victim = ServerHello(SECRET, Identity(RANK, "job", 2, 0, 4, 77))
    with pytest.raises(Refused):
        victim.feed(client(rank=2, peer=0).start())


def test_replayed_conversation_fails() -> None:
    c, s = client(), server()
    first = c.start()
    answer = s.feed(first)
    proof = c.feed(answer)
    again = server()
    fresh = again.feed(first)
    assert fresh[:HELLO_BYTES] != answer[:HELLO_BYTES]
    with pytest.raises(AuthenticationError):
        again.feed(proof)
    with pytest.raises(AuthenticationError):
        client().feed(answer)


def test_proof_of_one_side_is_no_proof_of_the_other() -> None:
    c, s = client(), server()
    answer = s.feed(c.start())
    with pytest.raises(AuthenticationError):
        s.feed(answer[HELLO_BYTES:])


@given(st.integers(0, HELLO_BYTES + PROOF_BYTES - 1), st.integers(1, 255))
def test_every_flipped_byte_of_the_answer_is_noticed(at: int, flip: int) -> None:
    c, s = client(), server()
    answer = bytearray(s.feed(c.start()))
    answer[at] ^= flip
    with pytest.raises((AuthenticationError, WireError)):
        c.feed(bytes(answer))
    assert not c.done


@given(st.integers(0, HELLO_BYTES - 1), st.integers(1, 255))
def test_every_flipped_byte_of_the_hello_is_noticed(at: int, flip: int) -> None:
    c, s = client(), server()
    first = bytearray(c.start())
    first[at] ^= flip
    try:
        answer = s.feed(bytes(first))
    except (AuthenticationError, WireError):
        return
    with pytest.raises(AuthenticationError):
        c.feed(answer)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.booleans(), st.booleans())
def test_random_bytes_only_raise_our_errors(noise: bytes, at_server: bool, with_magic: bool) -> None:
    machine = server() if at_server else client()
    data = (hello.MAGIC + hello.VERSION.to_bytes(2, "big") + noise) if with_magic else noise
    try:
        machine.feed(data)
    except (AuthenticationError, WireError):
        pass
    assert not machine.done
    assert len(machine._buffer) <= HELLO_BYTES + PROOF_BYTES


def test_truncated_hello_waits_and_eof_says_so() -> None:
    s = server()
    assert s.feed(client().start()[:-1]) == b""
    assert "75 bytes" in str(s.eof())
    assert "75 bytes" in repr(s)


def test_identities_are_checked() -> None:
    with pytest.raises(UsageError, match="rank"):
        Identity(RANK, "job", rank=-1)
    with pytest.raises(UsageError, match="world"):
        Identity(RANK, "job", world=1 << 64)
    with pytest.raises(UsageError, match="role"):
        Identity(9, "job")
    with pytest.raises(UsageError, match="bytes"):
        ClientHello("text", Identity(RANK, "job"), RANK)
    with pytest.raises(UsageError, match="accepts no"):
        ServerHello(b"", Identity(STORE_CLIENT, "job"))


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hello.hmac, "compare_digest", lambda a, b: compared.append(len(a)) or real(a, b))
    assert talk(client(), server()) == (None, None)
    assert compared == [PROOF_BYTES, PROOF_BYTES]
