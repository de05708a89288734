package script

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	fetchMaxBytes   = 1 << 20 // maximum size of a response, in bytes
	fetchMaxHeaders = 50
)

// Fetch returns api.fetch. Scripts of sessions use the client that session returns,
// others use outside. If session is nil, all use outside; if outside is nil, only
// scripts of sessions have the function. The clients decide which hosts may be reached; see
// package internal/network/fetch.
func Fetch(outside *http.Client, session func(engi.Owner, engi.NetworkPolicy) (*http.Client, error)) API {
	f := &fetcher{outside: outside, session: session}
	return API{
		ScriptAPI: engi.ScriptAPI{
			Name:      "fetch",
			Signature: "(url: string, init?: FetchInit) => Promise<FetchResponse>",
			Types: `interface FetchInit { method?: string; headers?: Record<string, string>; body?: string }
interface FetchResponse { ok: boolean; status: number; statusText: string; url: string; headers: Record<string, string>; body: string; truncated: boolean }`,
			Description: "Fetches a URL on a host that the operator or the session's network policy allows. The body is text, at most 1 MiB; parse JSON yourself.",
			Schema: schema(`{"type":"string"},{"type":"object","properties":{"method":{"type":"string"},` +
				`"headers":{"type":"object","additionalProperties":{"type":"string"}},"body":{"type":"string"}}}`),
			Session: outside == nil,
		},
		Call: f.call,
	}
}

type fetcher struct {
	outside *http.Client // may be nil
	session func(engi.Owner, engi.NetworkPolicy) (*http.Client, error)
}

// clientFor returns the client for a run. The caller must call release after the
// response.
func (f *fetcher) clientFor(c Call) (client *http.Client, release func(), err error) {
	switch {
	case c.Session != nil && f.session != nil:
		client, err = f.session(c.Owner, c.Session.Network)
		if err != nil {
			return nil, nil, err
		}
		return client, client.CloseIdleConnections, nil
	case f.outside == nil:
		return nil, nil, engi.Errorf(engi.Denied, "scripts outside of sessions may not fetch")
	}
	return f.outside, func() {}, nil
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
	client, release, err := f.clientFor(c)
	if err != nil {
		return nil, err
	}
	defer release()
	method := cmp.Or(strings.ToUpper(in.Method), http.MethodGet)
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, method) {
		return nil, engi.Errorf(engi.Invalid, "the method %.20q does not exist", method)
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
	Signature   string            // TypeScript signature; empty means a string or number for each placeholder
	Method      string            // HTTP method; empty means GET
	URL         string            // URL of the request; {0}, {1} … are replaced by the escaped arguments
	Headers     map[string]string // sent with each call; may contain secrets
}

// API returns the host function, which uses the client for the host of the URL.
// API returns Invalid for invalid definitions.
func (f HTTPFunction) API(clientFor func(host string) *http.Client) (API, error) {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(f.URL))
	if err != nil || u.Host == "" || strings.ContainsAny(hostOf(f.URL), "{}") {
		return API{}, engi.Errorf(engi.Invalid, "api function %s: %.100q is not a URL, or its host is not fixed", f.Name, f.URL)
	}
	client := clientFor(u.Host)
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
