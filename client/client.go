// Package client is the Go SDK: one method per operation of engi's HTTP
// API. It retries requests that are safe to retry, resumes broken streams without
// losing or repeating a byte, and reports failures as [*Error].
//
// It is not for servers, and imports only package v1 of engi, whose
// types it uses.
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
	// maxAnswer is the maximum number of bytes of one JSON document or event: the output that a server
	// keeps, three times for escapes, and small artifacts.
	maxAnswer = 512 << 20
	// silence is the maximum silence of a stream. Servers send a heartbeat every 15 s.
	silence = 50 * time.Second
	// longPoll is the time that one request waits for the end of a run.
	longPoll = 30 * time.Second

	leastDelay = 100 * time.Millisecond // pause before the first retry, doubled for each later one
	mostDelay  = 10 * time.Second
)

// A Client uses one engi server. It is safe for concurrent use.
type Client struct {
	url, key string
	http     *http.Client
	retries  int
	agent    string
}

// An Option changes the behaviour of a Client.
type Option func(*Client)

// WithHTTPClient makes a Client use h, whose Timeout must be 0: streams last.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithRetries sets the maximum number of retries of one call; 0 means none. The
// default is 5.
func WithRetries(n int) Option { return func(c *Client) { c.retries = max(0, n) } }

// WithUserAgent sets the name of the program for the server.
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

// An Error is an error of the server, or of reaching the server: then
// Status is 0 and Kind is unavailable, expired or invalid.
type Error struct {
	v1.Problem
}

// Error returns the text.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Title
	}
	return e.Detail
}

// IsKind reports whether err is an [*Error] of the given kind (v1.Exhausted …).
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

// A call is one request, which can be sent several times.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	body         any       // encoded as JSON; nil means none
	stream       io.Reader // bytes that are sent once, instead of body
	length       int64     // length of stream in bytes; -1 if unknown
	trailer      http.Header
	once         bool // do not repeat the request if it may have arrived
}

// send sends the request once and returns a successful answer. The
// caller closes its body.
func (c *Client) send(ctx context.Context, q *call) (*http.Response, error) {
	target := c.url + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	var body io.Reader
	switch {
	case q.body != nil:
		data, err := json.Marshal(q.body)
		if err != nil { // such as raw JSON that is not valid
			return nil, failure(v1.Invalid, "correct the request", "encode the request: %v", err)
		}
		body = bytes.NewReader(data)
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

// refused converts an answer of the server to an error.
func refused(resp *http.Response) *Error {
	e := &Error{}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(body, &e.Problem) != nil || e.Kind == "" {
		// A proxy between client and server has answered.
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

// do sends the request, and retries it if that is safe and may help.
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

// pause waits before a retry; it returns false if a retry is useless or unsafe.
func (c *Client) pause(ctx context.Context, q *call, attempt int, err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || ctx.Err() != nil || q.stream != nil || e.Status == http.StatusInsufficientStorage {
		return false
	}
	switch e.Kind {
	case v1.Exhausted: // the server has done nothing
	case v1.Unavailable:
		if q.once && e.Status == 0 {
			return false // the request may have arrived
		}
	default:
		return false
	}
	return sleep(ctx, delay(attempt, e.RetryAfter.Std()))
}

// delay returns the delay that the server asks for, or one that grows with the attempts. It is random, so that
// callers that failed at the same time do not retry at the same time.
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

// ask sends q and decodes the answer as a T.
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

// act sends q and ignores the content of the answer.
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

// get requests a path and decodes the answer as a T.
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

// all returns the objects of a list that has pages only on request. It requests pages, so
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

// list returns the objects of a list without pages.
func list[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	l, err := get[v1.List[T]](ctx, c, path, query)
	return l.Items, err
}

// create creates a T, and no second one if the connection breaks.
func create[T any](ctx context.Context, c *Client, path string, q any) (T, error) {
	return ask[T](ctx, c, &call{method: http.MethodPost, path: path, body: q, header: http.Header{keyHeader: {rand.Text()}}})
}

// send sends a request that may be repeated; a nil q means no body.
func send[T any](ctx context.Context, c *Client, method, path string, q any) (T, error) {
	x := &call{method: method, path: path}
	if q != nil {
		x.body = q
	}
	return ask[T](ctx, c, x)
}

// once sends a request that is not repeated if it may have arrived.
func once[T any](ctx context.Context, c *Client, path string, q any) (T, error) {
	return ask[T](ctx, c, &call{method: http.MethodPost, path: path, body: q, once: true})
}

// remove deletes the object at a path.
func (c *Client) remove(ctx context.Context, path string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: path})
}

const keyHeader = "Idempotency-Key"

// set returns a query with the parameters that are not empty.
func set(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

// number returns n as a parameter; empty for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// offset returns n as a parameter.
func offset(n int64) string { return strconv.FormatInt(n, 10) }

func segment(s string) string { return "/" + url.PathEscape(s) }
