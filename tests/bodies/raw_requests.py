"""Raw requests as they stand on the wire, for both doors: whatever one door answers, the other must answer too.

`TOPIC` in a request stands for a topic of its own, which has two records, and `NOTHING` for a name that no topic has; both are as long as what
replaces them. Each request is followed by another one, so that a door that saw its end elsewhere is found out.
"""

from __future__ import annotations

from bodies.requests import DELETES, DIFFS, REFUSED_DELETES, REFUSED_DIFFS, REFUSED_WRITES, WRITES
from bodies.syntax import INVALID

TOPIC, NOTHING = b"topic-00000", b"nothing-000"
JSON = b"Content-Type: application/json"
BODY = b'{"records":[{"data":{"text":"one"}},{"data":2,"tag":"t"}]}'
BODY_SIZE = b"%d" % len(BODY)


def request(method: bytes, target: bytes, *fields: bytes, body: bytes | None = None, version: bytes = b"HTTP/1.1", host: bool = True) -> bytes:
    """Build a request; Content-Length is added for a body."""
    lines = [b"%s %s %s" % (method, target, version)]
    if host:
        lines.append(b"Host: x")
    lines += fields
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def chunked(*chunks: bytes, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """Encode a body in chunks."""
    return b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks) + b"0\r\n" + trailer + b"\r\n"


def post(suffix: bytes, body: bytes, *fields: bytes) -> bytes:
    """Build a POST with a JSON body to the topic."""
    return request(b"POST", b"/v0/topics/" + TOPIC + suffix, JSON, *fields, body=body)


def _heads(*fields: bytes) -> bytes:
    """A write whose head has these lines instead of Content-Length."""
    return request(b"POST", b"/v0/topics/" + TOPIC, JSON, *fields) + BODY


LEGAL_HEADS: list[bytes] = [
    *(
        _heads(*fields, b"Content-Length: " + BODY_SIZE)
        for fields in [
            (),
            (b"X-Odd:",),
            (b"X-Odd: \t a  b \t",),
            (b"X-High: \xe9\xff",),
            (b"x!#$%&'*+-.^_`|~09: v",),
            (b"Accept: */*", b"User-Agent: a/1 (b; c)"),
            (b"Accept-Encoding: gzip, deflate",),
            (b"Accept-Encoding:",),
            (b"Accept-Encoding: gzip;q=0",),
            (b"Connection: keep-alive",),
            (b"Connection: close",),
            (b"connection: CLOSE",),
            (b"Connection: foo, close",),
            (b"Connection: keep-alive, Close",),
            (b"Content-Encoding: identity",),
            (b"Content-Encoding:",),
            (b"Idempotency-Key: k1",),
            (b"Idempotency-Key: a b c",),
            (b'Idempotency-Key: "quoted\\"',),
            (b"Idempotency-Key:",),
            (b"Idempotency-Key: " + b"k" * 256,),
            (b"Idempotency-Key: " + b"k" * 257,),
            (b"Idempotency-Key: \xc3\xa9",),
            (b"Idempotency-Key: \xff",),
            (b"Authorization: Bearer nobody",),
            (b"Authorization: Basic eDp5",),
            (b"X-A: 1", b"X-A: 2"),
            *((b"X-%d: v" % n, *(b"X-%d-%d: v" % (n, each) for each in range(n))) for n in (10, 50, 90)),
            (b"X-Long: " + b"v" * 4000,),
            (b"Upgrade: h2c", b"Connection: upgrade"),
            (b"Trailer: X-T",),
            (b"TE: trailers",),
        ]
    ),
    _heads(b"content-length:" + BODY_SIZE),
    _heads(b"CONTENT-LENGTH: \t" + BODY_SIZE + b" \t"),
    _heads(b"Content-Length: 000" + BODY_SIZE),
    b"\r\n" + _heads(b"Content-Length: " + BODY_SIZE),
    b"\r\n\r\n" + _heads(b"Content-Length: " + BODY_SIZE),
]

ILLEGAL_HEADS: list[bytes] = [
    *(
        _heads(*fields)
        for fields in [
            (b"Content-Length: +" + BODY_SIZE,),
            (b"Content-Length: -" + BODY_SIZE,),
            (b"Content-Length: 0x10",),
            (b"Content-Length: 4 8",),
            (b"Content-Length: 48,48",),
            (b"Content-Length: ",),
            (b"Content-Length: 1e1",),
            (b"Content-Length: 4_8",),
            (b"Content-Length : 48",),
            (b"Content-Length\t: 48",),
            (b"Content-Length: " + b"9" * 40,),
            (b"Content-Length: 48", b"Content-Length: 5"),
            (b"Content-Length: 48", b"Content-Length: 48"),
            (b"Content-Length: 48", b"Transfer-Encoding: chunked"),
            (b"Transfer-Encoding: chunked", b"Content-Length: 48"),
            (b"Transfer-Encoding : chunked",),
            (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
            (b"Content-Length: 48", b" folded"),
            (b"Content-Length: 48", b"X-Fold: a\r\n b"),
            (b"Content-Length: 48", b"X-Fold: a\r\n\tb"),
            (b"X-Nul: a\0b", b"Content-Length: 48"),
            (b"X-Cr: a\rX: b", b"Content-Length: 48"),
            (b"X-Lf: a\nX: b", b"Content-Length: 48"),
            (b"X-Ctl: a\x01b", b"Content-Length: 48"),
            (b"X-Del: a\x7fb", b"Content-Length: 48"),
            (b"X(Paren): a", b"Content-Length: 48"),
            (b"X Space: a", b"Content-Length: 48"),
            (b"X\xe9: a", b"Content-Length: 48"),
            (b"X@: a", b"Content-Length: 48"),
            (b": no name", b"Content-Length: 48"),
            (b"no colon", b"Content-Length: 48"),
            (b"Host: y", b"Content-Length: 48"),
        ]
    ),
    *(
        line + b"\r\nHost: x\r\n\r\n"
        for line in [
            b"GET /v0/health HTTP/1.1 ",
            b" GET /v0/health HTTP/1.1",
            b"GET\t/v0/health HTTP/1.1",
            b"GET /v0/health\tHTTP/1.1",
            b"GET /v0/he alth HTTP/1.1",
            b"GET /v0/health HTTP/2.0",
            b"GET /v0/health HTTP/1.2",
            b"GET /v0/health HTTP/0.9",
            b"GET /v0/health HTTP/1.",
            b"GET /v0/health HTTP/11",
            b"GET /v0/health http/1.1",
            b"GET /v0/health",
            b"GET",
            b"/v0/health HTTP/1.1",
            b"G(T /v0/health HTTP/1.1",
            b"GET /v0/health\0 HTTP/1.1",
            b"GET /v0/health\x7f HTTP/1.1",
            b"GET /v0/health XTTP/1.1",
        ]
    ),
    b"GET /v0/health HTTP/1.1\nHost: x\n\n",
    b"GET /v0/health HTTP/1.1\r\nHost: x\n\r\n",
    b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\n",
    b"GET /v0/health HTTP/1.1\r\nHost: x\r\nX: y\rz\r\n\r\n",
    request(b"GET", b"/v0/health", *(b"X-%d: v" % n for n in range(120))),
    request(b"GET", b"/v0/health", b"X-Long: " + b"v" * 9000),
    request(b"GET", b"/v0/health?" + b"q" * 5000),
    *(_heads(b"Transfer-Encoding: " + coding) for coding in [b"xchunked", b"gzip", b"chunked, identity", b"\x0bchunked", b"chunked;q=1"]),
]

CHUNKED: list[bytes] = [
    request(b"POST", b"/v0/topics/" + TOPIC, JSON, b"Transfer-Encoding: " + coding) + body
    for coding, body in [
        (b"chunked", chunked(BODY)),
        (b"CHUNKED", chunked(BODY[:7], BODY[7:])),
        (b"chunked", chunked(*(BODY[n : n + 1] for n in range(len(BODY))))),
        (b"chunked", chunked(BODY, extension=b";a=b")),
        (b"chunked", chunked(BODY, extension=b';a="b"')),
        (b"chunked", chunked(BODY, trailer=b"X-T: v\r\n")),
        (b"chunked", chunked(BODY, trailer=b"X-T: v\r\nX-U:\r\n")),
        (b"chunked", chunked()),
        (b"chunked", b"0000" + chunked(BODY)),
        (b"chunked", (b"%X\r\n" % len(BODY)) + BODY + b"\r\n0\r\n\r\n"),
        (b"chunked", chunked(BODY[:-1])),
    ]
]

BAD_CHUNKS: list[bytes] = [
    request(b"POST", b"/v0/topics/" + TOPIC, JSON, b"Transfer-Encoding: chunked") + size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
    for size in [b"G", b"-30", b"+30", b"0x30", b" 30", b"", b"3_0", b"30 ", b"1" + b"0" * 16 + b"30", b"\xb3\xb0", b"3\0"]
]

TARGETS: list[bytes] = [
    request(method, target, *fields, body=body)
    for method, target, fields, body in [
        *(
            (b"GET", b"/v0/topics/" + TOPIC + tail, (), None)
            for tail in [b"", b"?", b"?touch=1", b"?touch=0", b"?touch=false", b"?touch=maybe", b"?x=1"]
        ),
        *((b"GET", b"/v0/topics/" + TOPIC + tail, (), None) for tail in [b"?touch=true&touch=x", b"/", b"/diff", b"/nothing", b"#f", b"%20", b"%2e"]),
        *(
            (b"POST", b"/v0/topics/" + TOPIC + tail, (JSON,), BODY)
            for tail in [
                b"?return_seqs=1",
                b"?return_seqs=0",
                b"?return_seqs=false",
                b"?return_seqs=2",
                b"?return_seqs=",
                b"?return_seqs",
                b"?a=b",
                b"/",
            ]
        ),
        (b"GET", b"/v0/topics/" + TOPIC, (b"Accept-Encoding: gzip",), None),
        (b"GET", b"/v0/topics/" + TOPIC, (b"Connection: close",), None),
        (b"GET", b"/v0/topics/" + TOPIC, (), b"hello"),
        (b"GET", b"/v0/topics/" + TOPIC, (JSON,), b"{}"),
        (b"HEAD", b"/v0/topics/" + TOPIC, (), None),
        (b"OPTIONS", b"/v0/topics/" + TOPIC, (), None),
        (b"PATCH", b"/v0/topics/" + TOPIC, (JSON,), b"{}"),
        (b"BREW", b"/v0/topics/" + TOPIC, (), None),
        (b"BREW", b"/v0/topics/" + TOPIC + b"/diff", (JSON,), b"{}"),
        (b"BREW", b"/v0/nowhere", (), None),
        (b"GET", b"/v0/topics?prefix=" + b"a" * 3000, (), None),
        (b"get", b"/v0/topics/" + TOPIC, (), None),
        (b"DELETE", b"/v0/topics/" + TOPIC, (), None),
        (b"PUT", b"/v0/topics/" + TOPIC, (JSON,), b'{"cap_records":1}'),
        (b"GET", b"/v0/topics/" + NOTHING, (), None),
        (b"POST", b"/v0/topics/" + NOTHING, (JSON,), b'{"records":[{"data":1}],"create":false}'),
        (b"POST", b"/v0/topics/" + NOTHING, (JSON,), BODY),
        (b"POST", b"/v0/topics/" + NOTHING + b"/diff", (), b""),
        (b"GET", b"/v0/topics/%74opic-00000", (), None),
        (b"GET", b"/v0/topics/" + b"n" * 255, (), None),
        (b"GET", b"/v0/topics/" + b"n" * 256, (), None),
        (b"GET", b"/v0/topics/.x", (), None),
        (b"GET", b"/v0/topics/a%2Fb", (), None),
        (b"GET", b"/v0/topics/", (), None),
        (b"POST", b"/v0/topics/system.x", (JSON,), BODY),
        (b"GET", b"/v0/topics/system.x", (), None),
        (b"GET", b"http://any.example/v0/topics/" + TOPIC, (), None),
        (b"POST", b"http://any.example/v0/topics/" + TOPIC, (JSON,), BODY),
        (b"GET", b"*", (), None),
        (b"GET", b"v0/health", (), None),
        (b"GET", b"/v0/health", (), b"hello"),
        (b"GET", b"/nothing", (), None),
        (b"POST", b"/v0/topics/" + TOPIC, (), BODY),
        (b"POST", b"/v0/topics/" + TOPIC, (JSON,), b""),
        (b"POST", b"/v0/topics/" + TOPIC, (JSON,), None),
        (b"POST", b"/v0/topics/" + TOPIC + b"/diff", (), None),
        (b"POST", b"/v0/topics/" + TOPIC + b"/diff", (), b""),
        (b"POST", b"/v0/topics/" + TOPIC + b"/diff", (), b"{}"),
        *(
            (b"POST", b"/v0/topics/" + TOPIC + path, (b"Content-Type: " + kind,), body)
            for kind in [
                b"application/json; charset=utf-8",
                b"APPLICATION/JSON",
                b"application/json ;x",
                b"application/jsonx",
                b"text/plain",
                b"",
                b"a,b",
            ]
            for path, body in [(b"", BODY), (b"/diff", b'{"from_seq":1}')]
        ),
        *(
            (b"POST", b"/v0/topics/" + TOPIC, (b"Content-Type: " + one, b"Content-Type: " + two), BODY)
            for one, two in [(b"application/json", b"text/plain"), (b"text/plain", b"application/json")]
        ),
        *((b"POST", b"/v0/topics/" + TOPIC, (JSON, b"Content-Encoding: " + coding), BODY) for coding in [b"gzip", b"br", b"identity"]),
        (b"POST", b"/v0/topics/" + TOPIC, (JSON, b"Expect: 100-continue"), BODY),
    ]
] + [
    request(b"GET", b"/v0/topics/" + TOPIC, host=False),
    request(b"POST", b"/v0/topics/" + TOPIC, JSON, body=BODY, host=False),
    request(b"GET", b"/v0/topics/" + TOPIC, version=b"HTTP/1.0"),
    request(b"POST", b"/v0/topics/" + TOPIC, JSON, body=BODY, version=b"HTTP/1.0"),
    request(b"GET", b"/v0/topics/" + TOPIC, b"Connection: keep-alive", version=b"HTTP/1.0"),
]

BODIES: list[bytes] = [
    *(post(b"", body) for body in WRITES if b'"config"' not in body),
    *(post(b"", body) for body, *_ in REFUSED_WRITES),
    *(post(b"/diff", body) for body, _ in DIFFS if b'"wait_ms":' not in body),
    *(post(b"/diff", body) for body, _ in REFUSED_DIFFS),
    *(post(b"/delete", body) for body, *_ in DELETES),
    *(post(b"/delete", body) for body, _ in REFUSED_DELETES),
    *(post(b"", b'{"records":[{"data":' + body + b"}]}") for body, _ in INVALID),
    post(b"/diff", b'{"from_seq":2,"wait_ms":30}'),
    post(b"/diff", b'{"from_seq":1,"wait_ms":30}'),
    post(b"/diff", b'{"from_seq":0,"wait_ms":30,"node":"n"}'),
    post(b"/diff", b'{"from_seq":99,"wait_ms":0}'),
    post(b"/diff", b'{"from_seq":0,"epoch":1}'),
    post(b"", b'{"records":[' + b",".join(b'{"data":%d}' % n for n in range(200)) + b"]}", b"Accept-Encoding: gzip"),
    post(b"", b'{"records":[{"data":"' + b"x" * 3000 + b'"}]}'),
]

PIPELINES: list[bytes] = [
    post(b"", BODY) * 3,
    post(b"", BODY) + post(b"/diff", b'{"from_seq":0}') + request(b"GET", b"/v0/topics/" + TOPIC),
    (post(b"", BODY) + post(b"/diff", b'{"from_seq":2}')) * 5,
    request(b"GET", b"/v0/health") + post(b"", BODY) + request(b"GET", b"/v0/health") + post(b"/diff", b"{}"),
    post(b"", BODY) + request(b"POST", b"/v0/topics/" + TOPIC, JSON, b"Transfer-Encoding: chunked") + chunked(BODY) + post(b"", BODY),
    post(b"", b"{") + post(b"", BODY) + post(b"/diff", b"{}"),
    post(b"", BODY) + b"GARBAGE\r\n\r\n",
    post(b"/diff", b'{"from_seq":2,"wait_ms":30}') + post(b"", BODY) + post(b"/diff", b'{"from_seq":2}'),
    request(b"DELETE", b"/v0/topics/" + TOPIC) + post(b"", BODY) + request(b"GET", b"/v0/topics/" + TOPIC),
    post(b"", BODY, b"Connection: close") + post(b"", BODY),
    post(b"", b'{"records":[{"data":1}],"idempotency_key":"k"}') * 3,
    post(b"", b'{"records":[{"data":1}]}', b"Idempotency-Key: k") + post(b"", b'{"records":[{"data":2}]}', b"Idempotency-Key: k"),
]

REQUESTS: list[bytes] = list(dict.fromkeys([*LEGAL_HEADS, *ILLEGAL_HEADS, *CHUNKED, *BAD_CHUNKS, *TARGETS, *BODIES, *PIPELINES]))

# gunicorn's parser takes these, the front does not (RFC 9112 section 3: one space).
REFUSED_BY_THE_FRONT_ALONE: list[bytes] = [
    b"GET  /v0/health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v0/health  HTTP/1.1\r\nHost: x\r\n\r\n",
]
