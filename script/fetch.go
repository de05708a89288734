package script

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

// A FetchPolicy says what api.fetch and other functions may access on the network.
// The zero value allows nothing.
type FetchPolicy struct {
	Hosts   []string // names, or *.suffix; with :port for ports other than 80 and 443
	Private []string // addresses and networks that names may resolve to although they are not public
}

const (
	fetchMaxBytes     = 1 << 20 // of a response
	fetchMaxRedirects = 5
	fetchMaxHeaders   = 50
)

// allows reports Denied unless a URL may be fetched.
func (p FetchPolicy) allows(u *url.URL) error {
	if err := checkURL(u); err != nil {
		return err
	}
	host, port := strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), u.Port()
	usual := port == "" || u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80"
	for _, h := range p.Hosts {
		name, only, ok := strings.Cut(strings.ToLower(h), ":")
		if ok && only != port || !ok && !usual {
			continue
		}
		if suffix, wildcard := strings.CutPrefix(name, "*"); name == host || wildcard && strings.HasPrefix(suffix, ".") && strings.HasSuffix(host, suffix) {
			return nil
		}
	}
	return engi.Errorf(engi.Denied, "host %.100q is not on the list of hosts that scripts may reach", u.Host).
		WithRemedy("the operator adds it to script.fetch_hosts in config.toml")
}

// checkURL reports Denied for URLs that are not http or https, or have credentials.
func checkURL(u *url.URL) error {
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return engi.Errorf(engi.Denied, "scheme %.20q is not allowed", u.Scheme)
	}
	if u.User != nil {
		return engi.Errorf(engi.Denied, "a URL must not have a user")
	}
	return nil
}

// nonPublic are the networks that public names should not resolve to.
var nonPublic = func() (all []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/10", "ff00::/8",
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

// Client returns a client that enforces the policy for the URL, for each redirect,
// and for the addresses that names resolve to. It reports Invalid for a policy
// that is not valid.
func (p FetchPolicy) Client() (*http.Client, error) {
	var private []netip.Prefix
	for _, s := range p.Private {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			addr, err := netip.ParseAddr(s)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "%.80q is neither an address nor a network", s)
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		private = append(private, prefix)
	}
	dialer := &net.Dialer{
		Timeout: 5 * time.Second,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return engi.Errorf(engi.Internal, "address %q: %v", address, err)
			}
			addr := at.Addr().Unmap().WithZone("")
			in := func(all []netip.Prefix) bool {
				return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
			}
			if in(nonPublic) && !in(private) {
				return engi.Errorf(engi.Denied, "the name resolves to %s, which is not a public address", addr)
			}
			return nil
		},
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: 4, MaxConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		},
		CheckRedirect: checkRedirects(p.allows),
	}, nil
}

// checkRedirects bounds the number of redirects and checks each with check.
func checkRedirects(check func(*url.URL) error) func(*http.Request, []*http.Request) error {
	return func(r *http.Request, via []*http.Request) error {
		if len(via) > fetchMaxRedirects {
			return engi.Errorf(engi.Denied, "more than %d redirects", fetchMaxRedirects)
		}
		return check(r.URL)
	}
}

// A Wall sends requests on an owner's behalf and enforces a network policy. It is
// implemented by package gate/egress.
type Wall interface {
	Transport(owner engi.Owner, policy engi.NetworkPolicy) (http.RoundTripper, error)
}

// Fetch returns api.fetch. With a session and a wall, the session's network policy
// applies, otherwise p. If p allows nothing, only scripts of sessions have the
// function.
func Fetch(p FetchPolicy, wall Wall) (API, error) {
	client, err := p.Client()
	if err != nil {
		return API{}, err
	}
	f := &fetcher{policy: p, client: client, wall: wall}
	return API{
		ScriptAPI: engi.ScriptAPI{
			Name:      "fetch",
			Signature: "(url: string, init?: FetchInit) => Promise<FetchResponse>",
			Types: `interface FetchInit { method?: string; headers?: Record<string, string>; body?: string }
interface FetchResponse { ok: boolean; status: number; statusText: string; url: string; headers: Record<string, string>; body: string; truncated: boolean }`,
			Description: "Fetches a URL on a host that the operator or the session's network policy allows. The body is text, at most 1 MiB; parse JSON yourself.",
			Schema: schema(`{"type":"string"},{"type":"object","properties":{"method":{"type":"string"},` +
				`"headers":{"type":"object","additionalProperties":{"type":"string"}},"body":{"type":"string"}}}`),
			Session: len(p.Hosts) == 0,
		},
		Call: f.call,
	}, nil
}

type fetcher struct {
	policy FetchPolicy
	client *http.Client // enforces policy
	wall   Wall         // may be nil
}

// clientFor returns the client that may fetch u in this run. The caller must call
// release after the response.
func (f *fetcher) clientFor(c Call, u *url.URL) (client *http.Client, release func(), err error) {
	if c.Session == nil || f.wall == nil {
		return f.client, func() {}, f.policy.allows(u)
	}
	if err := checkURL(u); err != nil {
		return nil, nil, err
	}
	transport, err := f.wall.Transport(c.Owner, c.Session.Network)
	if err != nil {
		return nil, nil, err
	}
	client = &http.Client{Transport: transport, CheckRedirect: checkRedirects(checkURL)}
	return client, client.CloseIdleConnections, nil
}

type fetchInit struct {
	Method  string            `json:"method"`
	Headers map[string]string `json:"headers"`
	Body    *string           `json:"body"`
}

type fetchResponse struct {
	OK         bool              `json:"ok"`
	Status     int               `json:"status"`
	StatusText string            `json:"statusText"`
	URL        string            `json:"url"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
	Truncated  bool              `json:"truncated"`
}

func (f *fetcher) call(ctx context.Context, c Call) (any, error) {
	var address string
	var in fetchInit
	if err := c.Into(&address, &in); err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "%.100q is not a URL", address)
	}
	client, release, err := f.clientFor(c, u)
	if err != nil {
		return nil, err
	}
	defer release()
	method := cmp.Or(strings.ToUpper(in.Method), http.MethodGet)
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, method) {
		return nil, engi.Errorf(engi.Invalid, "method %.20q is not known", method)
	}
	var body io.Reader
	if in.Body != nil {
		body = strings.NewReader(*in.Body)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "%.100q cannot be fetched", address)
	}
	for k, v := range in.Headers {
		req.Header.Set(k, v)
	}
	req.Header.Del("Host")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fetchError(ctx, u.Host, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, fetchMaxBytes+1))
	if err != nil {
		return nil, fetchError(ctx, u.Host, err)
	}
	out := fetchResponse{
		OK: resp.StatusCode/100 == 2, Status: resp.StatusCode, StatusText: http.StatusText(resp.StatusCode),
		URL: resp.Request.URL.String(), Headers: map[string]string{}, Truncated: len(text) > fetchMaxBytes,
	}
	for k, v := range resp.Header {
		if len(out.Headers) < fetchMaxHeaders {
			out.Headers[strings.ToLower(k)] = strings.Join(v, ", ")
		}
	}
	out.Body = strings.ToValidUTF8(string(text[:min(len(text), fetchMaxBytes)]), "\uFFFD")
	return out, nil
}

// fetchError classifies an error of a request.
func fetchError(ctx context.Context, host string, err error) error {
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%.100s did not answer in time", host)
	}
	if ours, ok := errors.AsType[*engi.Error](err); ok {
		return ours
	}
	return engi.Errorf(engi.Unavailable, "%.100s cannot be reached", host)
}

// An HTTPFunction is a host function that fetches a URL, which operators can add in
// the configuration.
type HTTPFunction struct {
	Name        string
	Description string
	Signature   string            // empty means a string or number for each placeholder
	Method      string            // empty means GET
	URL         string            // {0}, {1} … are replaced by the escaped arguments
	Headers     map[string]string // sent with each call; may contain secrets
}

// API returns the host function. It may only access the host of the URL. API reports
// Invalid for definitions that are not valid.
func (f HTTPFunction) API(private []string) (API, error) {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(f.URL))
	if err != nil || u.Host == "" || strings.ContainsAny(hostOf(f.URL), "{}") {
		return API{}, engi.Errorf(engi.Invalid, "api function %s: %.100q is not a URL, or its host is not fixed", f.Name, f.URL)
	}
	policy := FetchPolicy{Hosts: []string{u.Host}, Private: private}
	client, err := policy.Client()
	if err != nil {
		return API{}, err
	}
	arguments := 0
	for strings.Contains(f.URL, "{"+strconv.Itoa(arguments)+"}") {
		arguments++
	}
	signature := f.Signature
	if signature == "" {
		var params []string
		for i := range arguments {
			params = append(params, "arg"+strconv.Itoa(i)+": string | number")
		}
		signature = "(" + strings.Join(params, ", ") + ") => Promise<any>"
	}
	return API{
		ScriptAPI: engi.ScriptAPI{Name: f.Name, Signature: signature, Description: f.Description},
		Call: func(ctx context.Context, c Call) (any, error) {
			args := make([]any, arguments)
			into := make([]any, arguments)
			for i := range args {
				into[i] = &args[i]
			}
			if err := c.Into(into...); err != nil {
				return nil, err
			}
			address := f.URL
			for i, a := range args {
				var text string
				switch v := a.(type) {
				case string:
					text = v
				case float64:
					text = strconv.FormatFloat(v, 'f', -1, 64)
				default:
					return nil, engi.Errorf(engi.Invalid, "argument %d must be a string or a number", i+1)
				}
				if !utf8.ValidString(text) || text == "." || text == ".." {
					return nil, engi.Errorf(engi.Invalid, "argument %d cannot be part of a URL", i+1)
				}
				address = strings.ReplaceAll(address, "{"+strconv.Itoa(i)+"}", escape(text))
			}
			req, err := http.NewRequestWithContext(ctx, cmp.Or(f.Method, http.MethodGet), address, nil)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "the arguments do not give a URL")
			}
			for k, v := range f.Headers {
				req.Header.Set(k, v)
			}
			return fetchJSON(ctx, client, req)
		},
	}, nil
}

// escape escapes text for use in a path or a query.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

func hostOf(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	host, _, _ := strings.Cut(rest, "/")
	host, _, _ = strings.Cut(host, "?")
	return host
}

// fetchJSON returns a response's JSON, or its text if it is not JSON.
func fetchJSON(ctx context.Context, client *http.Client, req *http.Request) (any, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, fetchError(ctx, req.URL.Host, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, fetchMaxBytes+1))
	if err != nil {
		return nil, fetchError(ctx, req.URL.Host, err)
	}
	if len(body) > fetchMaxBytes {
		return nil, engi.Errorf(engi.Exhausted, "the answer has more than %d bytes", fetchMaxBytes)
	}
	if resp.StatusCode/100 != 2 {
		return nil, engi.Errorf(engi.Unavailable, "the service answered status %d", resp.StatusCode)
	}
	if trimmed := bytes.TrimSpace(body); json.Valid(trimmed) && len(trimmed) > 0 {
		return json.RawMessage(trimmed), nil
	}
	return strings.ToValidUTF8(string(body), "\uFFFD"), nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := slices.Sorted(maps.Keys(m))
	if keys == nil {
		keys = []string{}
	}
	return keys
}
