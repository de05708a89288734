package intercept

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
	"github.com/engi-dev/engi/internal/network/mask"
)

const (
	maxResponseHeader = 256 << 10
	maxConnsPerHost   = 256  // maximum number of connections of one sandbox to one host
	maxRequests       = 512  // maximum number of concurrent requests of one sandbox
	maxForms          = 1000 // maximum number of secrets whose forms are cached
)

// An upstream sends the requests of one sandbox. Its connections are not shared
// with other sandboxes.
type upstream struct {
	http2    *http.Transport // HTTP/2 if the host supports it
	http1    *http.Transport // HTTP/1.1, for upgrades
	requests atomic.Int64    // number of requests in progress

	mu    sync.Mutex
	forms map[string]secretForms // forms by the secret's name; guarded by mu
}

// secretForms caches the forms of a secret's value.
type secretForms struct {
	value string
	forms [][]byte
}

// formsOf returns the forms of a secret's value, cached because values seldom
// change.
func (u *upstream) formsOf(name, value string) [][]byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	k, ok := u.forms[name]
	if !ok || k.value != value {
		k = secretForms{value, mask.Forms(value)}
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
			TLSHandshakeTimeout:    i.o.HandshakeTimeout,
			DisableCompression:     true, // the sandbox decides about compression
			MaxIdleConns:           64,
			MaxIdleConnsPerHost:    8,
			MaxConnsPerHost:        maxConnsPerHost,
			IdleConnTimeout:        90 * time.Second,
			ResponseHeaderTimeout:  i.o.ResponseTimeout,
			ExpectContinueTimeout:  5 * time.Second,
			MaxResponseHeaderBytes: maxResponseHeader,
			WriteBufferSize:        32 << 10,
			ReadBufferSize:         32 << 10,
			Protocols:              new(http.Protocols),
			HTTP2:                  &http.HTTP2Config{SendPingTimeout: 45 * time.Second, PingTimeout: 15 * time.Second},
		}
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(two)
		return t
	}
	return &upstream{http2: made(true), http1: made(false), forms: map[string]secretForms{}}
}

// RoundTrip implements [http.RoundTripper].
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return u.http1.RoundTrip(r)
	}
	return u.http2.RoundTrip(r)
}

// closeIdle closes idle connections. Other connections are closed at the end of their requests.
func (u *upstream) closeIdle() {
	u.http2.CloseIdleConnections()
	u.http1.CloseIdleConnections()
}

// urlHost returns the target as the host of a URL.
func (t Target) urlHost() string {
	if t.TLS && t.Port == 443 || !t.TLS && t.Port == 80 {
		return t.Host
	}
	return t.Host + ":" + strconv.Itoa(int(t.Port))
}

// pinned reports whether a secret that is pinned to hosts may be sent to t. If hosts is
// empty, it may.
func (t Target) pinned(hosts []string) bool {
	return len(hosts) == 0 || slices.ContainsFunc(hosts, func(text string) bool {
		h, err := policy.ParseHost(text)
		return err == nil && h.Covers(t.Host, t.Port, t.TLS)
	})
}

// matches reports whether the host of a request, as written by the client, is t.
// The port may be omitted.
func (t Target) matches(host string) bool {
	name, port, ok := strings.Cut(strings.ToLower(host), ":")
	if ok && port != strconv.Itoa(int(t.Port)) {
		return false
	}
	return strings.TrimSuffix(name, ".") == t.Host
}
