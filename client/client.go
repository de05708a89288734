// Package client is the Go SDK: one method per operation of engi's HTTP
// surface. It retries what is safe to retry, resumes broken streams without
// losing or repeating a byte, and reports failures as [*Error].
//
// It is not for servers and needs nothing of the house but package v1, whose
// types it speaks.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

const (
	// maxAnswer bounds one JSON document or one event: what a server keeps
	// of output, thrice for escapes, and small artifacts.
	maxAnswer = 512 << 20
	// silence is how long a stream may say nothing. Servers beat every 15 s.
	silence = 50 * time.Second
	// longPoll is how long one request waits for a run to end.
	longPoll = 30 * time.Second

	leastDelay = 100 * time.Millisecond // before a retry, doubled each time
	mostDelay  = 10 * time.Second
)

// A Client talks to one engi server. It is safe for concurrent use.
type Client struct {
	url, key string
	http     *http.Client
	retries  int
	agent    string
}

// An Option changes how a Client works.
type Option func(*Client)

// WithHTTPClient makes a Client use h, whose Timeout must be 0: streams last.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithRetries bounds how often one call is tried again; 0 means never. The
// default is 5.
func WithRetries(n int) Option { return func(c *Client) { c.retries = max(0, n) } }

// WithUserAgent names the program to the server.
func WithUserAgent(name string) Option { return func(c *Client) { c.agent = name } }

// New returns a client of the server at url ("http://127.0.0.1:7777") that
// authenticates with key. It does not connect.
func New(url, key string, opts ...Option) *Client {
	c := &Client{url: strings.TrimRight(url, "/"), key: key, http: http.DefaultClient, retries: 5, agent: "engi-go"}
	for _, o := range opts {
		o(c)
	}
	return c
}

// An Error is the server's refusal, or what kept us from reaching it: then
// Status is 0 and Kind is unavailable, expired or invalid.
type Error struct {
	v1.Problem
}

// Error returns what happened.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Title
	}
	return e.Detail
}

// IsKind reports whether err is an [*Error] of that kind (v1.Exhausted …).
func IsKind(err error, kind string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == kind
}

func failure(kind, remedy, format string, args ...any) *Error {
	return &Error{v1.Problem{Kind: kind, Detail: fmt.Sprintf(format, args...), Remedy: remedy}}
}

// unreachable classifies an error of the transport.
func (c *Client) unreachable(ctx context.Context, err error) *Error {
	if ctx.Err() != nil {
		return failure(v1.Expired, "raise the deadline", "%v", context.Cause(ctx))
	}
	return failure(v1.Unavailable, "check that the server runs and that the address is right", "reach %s: %v", c.url, err)
}

// A call is one request, ready to be sent as often as necessary.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte    // JSON; nil means none
	stream       io.Reader // instead of body: bytes, sent once
	length       int64     // of stream; -1 if unknown
	trailer      http.Header
	once         bool // must not be repeated if it may have arrived
}

// send sends the request once and returns the answer if it is a success. The
// caller closes its body.
func (c *Client) send(ctx context.Context, q *call) (*http.Response, error) {
	target := c.url + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	var body io.Reader
	switch {
	case q.body != nil:
		body = bytes.NewReader(q.body)
	case q.stream != nil:
		body = io.NopCloser(q.stream)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return nil, failure(v1.Invalid, "check the server's address", "%v", err)
	}
	for name, values := range q.header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", c.agent)
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.stream != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
		req.ContentLength, req.Trailer = q.length, q.trailer
		if q.length == 0 {
			req.Body = http.NoBody
		}
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refused(resp)
}

// refused reads the server's reasons.
func refused(resp *http.Response) *Error {
	e := &Error{}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(body, &e.Problem) != nil || e.Kind == "" {
		// Something between us and the server has answered.
		e.Problem = v1.Problem{Title: resp.Status, Detail: fmt.Sprintf("the server answered %s: %.200q", resp.Status, body), Kind: v1.Internal}
		switch resp.StatusCode {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			e.Kind = v1.Unavailable
		case http.StatusTooManyRequests:
			e.Kind = v1.Exhausted
		}
	}
	e.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && e.RetryAfter == 0 && seconds >= 0 && seconds < math.MaxInt32 {
		e.RetryAfter = v1.Duration(time.Duration(seconds) * time.Second)
	}
	return e
}

// do sends the request, again and again if that is safe and may help.
func (c *Client) do(ctx context.Context, q *call) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		resp, err := c.send(ctx, q)
		if err == nil {
			return resp, nil
		}
		if attempt == c.retries || !c.pause(ctx, q, attempt, err) {
			return nil, err
		}
	}
}

// pause waits before another attempt; it returns false if none makes sense.
func (c *Client) pause(ctx context.Context, q *call, attempt int, err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || ctx.Err() != nil || q.stream != nil || e.Status == http.StatusInsufficientStorage {
		return false
	}
	switch e.Kind {
	case v1.Exhausted: // nothing was done
	case v1.Unavailable:
		if q.once && e.Status == 0 {
			return false // it may have arrived
		}
	default:
		return false
	}
	return sleep(ctx, delay(attempt, e.RetryAfter.Std()))
}

// delay is what the server asks for, or grows with the attempts. Callers that
// failed together do not come back together.
func delay(attempt int, asked time.Duration) time.Duration {
	d := asked
	if d <= 0 {
		d = min(leastDelay<<min(attempt, 16), mostDelay)
	}
	d = min(d, time.Minute)
	var b [1]byte
	_, _ = rand.Read(b[:]) // never fails
	return d + d*time.Duration(b[0])/1024
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ask sends q and reads the answer as a T.
func ask[T any](ctx context.Context, c *Client, q *call) (T, error) {
	var v T
	for attempt := 0; ; attempt++ {
		resp, err := c.do(ctx, q)
		if err != nil {
			return v, err
		}
		body, err := readAll(resp)
		if err != nil { // the connection broke in the middle of the answer
			e := c.unreachable(ctx, err)
			if attempt == c.retries || q.once || !c.pause(ctx, q, attempt, e) {
				return v, e
			}
			continue
		}
		if err := json.Unmarshal(body, &v); err != nil {
			return v, failure(v1.Internal, "check that the address is that of an engi server", "read the answer to %s %s: %v", q.method, q.path, err)
		}
		return v, nil
	}
}

func readAll(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is larger than %s", v1.Bytes(maxAnswer))
	}
	return body, err
}

// act sends q, whose answer says nothing.
func (c *Client) act(ctx context.Context, q *call) error {
	resp, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	_, err = readAll(resp)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	return nil
}

// get reads what is at a path as a T.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	return ask[T](ctx, c, &call{method: http.MethodGet, path: path, query: query})
}

// pages yields the objects at a path, page by page.
func pages[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		query := maps.Clone(query)
		if query == nil {
			query = url.Values{}
		}
		for {
			page, err := get[v1.List[T]](ctx, c, path, query)
			if err != nil {
				yield(*new(T), err)
				return
			}
			for _, x := range page.Items {
				if !yield(x, nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}

// all reads the objects at a path whose list has pages only if they are asked for, so
// that no answer is too large.
func all[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", page)
	list := []T{}
	for x, err := range pages[T](ctx, c, path, query) {
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// list reads the objects at a path.
func list[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	l, err := get[v1.List[T]](ctx, c, path, query)
	return l.Items, err
}

// create makes a T, and no second one if the connection breaks.
func create[T any](ctx context.Context, c *Client, path string, q any) (T, error) {
	return ask[T](ctx, c, &call{method: http.MethodPost, path: path, body: encode(q), header: http.Header{keyHeader: {rand.Text()}}})
}

// send sends a request that may be repeated; a nil q is no body.
func send[T any](ctx context.Context, c *Client, method, path string, q any) (T, error) {
	x := &call{method: method, path: path}
	if q != nil {
		x.body = encode(q)
	}
	return ask[T](ctx, c, x)
}

// once sends a request that is not repeated if it may have arrived.
func once[T any](ctx context.Context, c *Client, path string, q any) (T, error) {
	return ask[T](ctx, c, &call{method: http.MethodPost, path: path, body: encode(q), once: true})
}

// remove deletes what is at a path.
func (c *Client) remove(ctx context.Context, path string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: path})
}

const keyHeader = "Idempotency-Key"

// set returns a query of those parameters that are not empty.
func set(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

// number is n as a parameter; 0 is left out.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// offset is n as a parameter.
func offset(n int64) string { return strconv.FormatInt(n, 10) }

// encode writes a request.
func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // unreachable: all types of package v1 can be written
	}
	return body
}

func segment(s string) string { return "/" + url.PathEscape(s) }
