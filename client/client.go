// Package client is the Go SDK: one method per operation of engi's HTTP
// surface. It retries what is safe to retry, resumes broken streams without
// losing or repeating a byte, and reports failures as [*Error].
package client

import "net/http"

// A Client talks to one engi server. It is safe for concurrent use.
type Client struct {
	url, key string
	http     *http.Client
}

// An Option changes how a Client works.
type Option func(*Client)

// New returns a client of the server at url ("http://127.0.0.1:7777") that
// authenticates with key. It does not connect.
func New(url, key string, opts ...Option) *Client {
	c := &Client{url: url, key: key, http: http.DefaultClient}
	for _, o := range opts {
		o(c)
	}
	return c
}
