package script

import (
	"bytes"
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

	"github.com/engi-dev/engi"
)

const (
	fetchBytes   = 1 << 20 // of a response that are read
	fetchHeaders = 50
)

// Fetch returns api.fetch, which asks for a URL: with the client that session
// returns if the run belongs to a session and session is not nil, else with
// outside. With a nil outside, only scripts of sessions have the function. The
// clients decide what may be reached; see package fetch.
func Fetch(outside *http.Client, session func(engi.Owner, engi.NetworkPolicy) (*http.Client, error)) API {
	type init struct {
		Method  string            `json:"method"`
		Headers map[string]string `json:"headers"`
		Body    *string           `json:"body"`
	}
	type response struct {
		OK         bool              `json:"ok"`
		Status     int               `json:"status"`
		StatusText string            `json:"statusText"`
		URL        string            `json:"url"`
		Headers    map[string]string `json:"headers"`
		Body       string            `json:"body"`
		Truncated  bool              `json:"truncated"`
	}
	return API{
		ScriptAPI: engi.ScriptAPI{
			Name:      "fetch",
			Signature: "(url: string, init?: FetchInit) => Promise<FetchResponse>",
			Types: `interface FetchInit { method?: string; headers?: Record<string, string>; body?: string }
interface FetchResponse { ok: boolean; status: number; statusText: string; url: string; headers: Record<string, string>; body: string; truncated: boolean }`,
			Description: "Asks for a URL on a host the operator or the session's network policy allows. The body is text, at most 1 MiB of it; JSON.parse it yourself.",
			Schema: schema(`{"type":"string"},{"type":"object","properties":{"method":{"type":"string"},` +
				`"headers":{"type":"object","additionalProperties":{"type":"string"}},"body":{"type":"string"}}}`),
			Session: outside == nil,
		},
		Call: func(ctx context.Context, c Call) (any, error) {
			var address string
			var in init
			if err := c.Into(&address, &in); err != nil {
				return nil, err
			}
			u, err := url.Parse(address)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "%.100q is no URL", address)
			}
			client := outside
			switch {
			case c.Session != nil && session != nil:
				if client, err = session(c.Owner, c.Session.Network); err != nil {
					return nil, err
				}
				defer client.CloseIdleConnections() // it is this call's
			case client == nil:
				return nil, engi.Errorf(engi.Denied, "scripts may fetch nothing outside of sessions")
			}
			method := strings.ToUpper(in.Method)
			if method == "" {
				method = http.MethodGet
			}
			if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, method) {
				return nil, engi.Errorf(engi.Invalid, "method %.20q is not known", method)
			}
			var body io.Reader
			if in.Body != nil {
				body = strings.NewReader(*in.Body)
			}
			req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "%.100q cannot be asked", address)
			}
			for k, v := range in.Headers {
				req.Header.Set(k, v)
			}
			req.Header.Del("Host")
			resp, err := client.Do(req)
			if err != nil {
				return nil, unreachable(ctx, u.Host, err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(io.LimitReader(resp.Body, fetchBytes+1))
			if err != nil {
				return nil, unreachable(ctx, u.Host, err)
			}
			out := response{
				OK: resp.StatusCode/100 == 2, Status: resp.StatusCode, StatusText: http.StatusText(resp.StatusCode),
				URL: resp.Request.URL.String(), Headers: map[string]string{}, Truncated: len(text) > fetchBytes,
			}
			for k, v := range resp.Header {
				if len(out.Headers) < fetchHeaders {
					out.Headers[strings.ToLower(k)] = strings.Join(v, ", ")
				}
			}
			out.Body = strings.ToValidUTF8(string(text[:min(len(text), fetchBytes)]), "\uFFFD")
			return out, nil
		},
	}
}

// unreachable classifies what went wrong on the way.
func unreachable(ctx context.Context, host string, err error) error {
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%.100s did not answer in time", host)
	}
	if ours, ok := errors.AsType[*engi.Error](err); ok {
		return ours
	}
	return engi.Errorf(engi.Unavailable, "%.100s cannot be reached", host)
}

// An HTTPFunction is a host function that asks a URL: what an operator can
// add in configuration, without Go.
type HTTPFunction struct {
	Name        string
	Description string
	Signature   string            // empty means one of strings for each placeholder
	Method      string            // empty means GET
	URL         string            // {0}, {1} … are the arguments, escaped
	Headers     map[string]string // sent with each call; may hold secrets
}

// API makes the function, which asks with what client returns for the host of
// the URL. It reports Invalid.
func (f HTTPFunction) API(client func(host string) *http.Client) (API, error) {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(f.URL))
	if err != nil || u.Host == "" || strings.ContainsAny(hostPart(f.URL), "{}") {
		return API{}, engi.Errorf(engi.Invalid, "api function %s: %.100q is no URL, or its host is not fixed", f.Name, f.URL)
	}
	asks := client(u.Host)
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
			method := f.Method
			if method == "" {
				method = http.MethodGet
			}
			req, err := http.NewRequestWithContext(ctx, method, address, nil)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "the arguments make no URL")
			}
			for k, v := range f.Headers {
				req.Header.Set(k, v)
			}
			return ask(ctx, asks, req)
		},
	}, nil
}

// escape makes text fit for a path and for a query alike.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

func hostPart(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	host, _, _ := strings.Cut(rest, "/")
	host, _, _ = strings.Cut(host, "?")
	return host
}

// ask returns a response's JSON, or its text if it is none.
func ask(ctx context.Context, client *http.Client, req *http.Request) (any, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, unreachable(ctx, req.URL.Host, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, fetchBytes+1))
	if err != nil {
		return nil, unreachable(ctx, req.URL.Host, err)
	}
	if len(body) > fetchBytes {
		return nil, engi.Errorf(engi.Exhausted, "the answer has more than %d bytes", fetchBytes)
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
