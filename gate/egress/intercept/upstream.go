package intercept

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi"
)

const (
	maxAnswerHeader = 256 << 10
	maxUpstream     = 256  // connections of one sandbox to one host
	maxRequests     = 512  // of one sandbox at once
	maxForms        = 1000 // secrets whose forms are kept
)

// An upstream is the way out of one sandbox. Connections are kept for its
// next requests and for nobody else's.
type upstream struct {
	both *http.Transport // HTTP/2 where the host speaks it
	one  *http.Transport // HTTP/1.1, for upgrades
	busy atomic.Int64    // requests that are served

	mu    sync.Mutex
	forms map[string]known // by secret; guarded by mu
}

// A known value is one whose forms are known.
type known struct {
	value string
	forms [][]byte
}

// formsOf returns formsOf a secret's value, which seldom changes.
func (u *upstream) formsOf(name, value string) [][]byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	k, ok := u.forms[name]
	if !ok || k.value != value {
		k = known{value, formsOf(value)}
		if len(u.forms) >= maxForms {
			clear(u.forms)
		}
		u.forms[name] = k
	}
	return k.forms
}

func (i *Interceptor) newUpstream(id engi.SandboxID) *upstream {
	made := func(two bool) *http.Transport {
		t := &http.Transport{
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				host, text, err := net.SplitHostPort(address)
				if err != nil {
					return nil, engi.Errorf(engi.Internal, "%v", err)
				}
				port, err := strconv.ParseUint(text, 10, 16)
				if err != nil {
					return nil, engi.Errorf(engi.Internal, "%v", err)
				}
				return i.o.Dial(ctx, id, host, uint16(port))
			},
			TLSClientConfig:        &tls.Config{RootCAs: i.o.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    i.o.Handshake,
			DisableCompression:     true, // what the sandbox asks for is what it gets
			MaxIdleConns:           64,
			MaxIdleConnsPerHost:    8,
			MaxConnsPerHost:        maxUpstream,
			IdleConnTimeout:        90 * time.Second,
			ResponseHeaderTimeout:  i.o.Answer,
			ExpectContinueTimeout:  5 * time.Second,
			MaxResponseHeaderBytes: maxAnswerHeader,
			WriteBufferSize:        32 << 10,
			ReadBufferSize:         32 << 10,
			Protocols:              new(http.Protocols),
			HTTP2:                  &http.HTTP2Config{SendPingTimeout: 45 * time.Second, PingTimeout: 15 * time.Second},
		}
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(two)
		return t
	}
	return &upstream{both: made(true), one: made(false), forms: map[string]known{}}
}

// RoundTrip sends a request that leaves the sandbox.
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return u.one.RoundTrip(r)
	}
	return u.both.RoundTrip(r)
}

// close ends connections that carry nothing; others end with their requests.
func (u *upstream) close() {
	u.both.CloseIdleConnections()
	u.one.CloseIdleConnections()
}

// address is where a request to a target goes, as URLs have it.
func (t Target) address() string {
	if t.TLS && t.Port == 443 || !t.TLS && t.Port == 80 {
		return t.Host
	}
	return t.Host + ":" + strconv.Itoa(int(t.Port))
}

// named reports whether a request's host, as the client wrote it, is t. A port
// may be left out: the connection says which one is meant.
func (t Target) named(host string) bool {
	name, port, ok := strings.Cut(strings.ToLower(host), ":")
	if ok && port != strconv.Itoa(int(t.Port)) {
		return false
	}
	return strings.TrimSuffix(name, ".") == t.Host
}
