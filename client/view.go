package client

import (
	"cmp"
	"context"
	"iter"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
)

// dial opens a WebSocket. An empty key means the client's key.
func (c *Client) dial(ctx context.Context, path string, query url.Values, key string, protocols ...string) (*websocket.Conn, error) {
	header := http.Header{"User-Agent": {c.agent}}
	if key = cmp.Or(key, c.key); key != "" {
		header.Set("Authorization", "Bearer "+key)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, c.url+path, &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: header, Subprotocols: protocols, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode >= 400 {
			return nil, refused(resp)
		}
		return nil, c.unreachable(ctx, err)
	}
	return ws, nil
}

// stream opens a WebSocket whose binary messages form the byte stream of a connection.
func (c *Client) stream(ctx context.Context, path string, query url.Values) (net.Conn, error) {
	ws, err := c.dial(ctx, path, query, "")
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.WithoutCancel(ctx), ws, websocket.MessageBinary), nil
}

// A view follows the output of a terminal over a sequence of WebSockets.
type view struct {
	c *Client

	mu   sync.Mutex
	ws   *websocket.Conn
	at   int64 // offset of the next byte; -1 until the first read
	exit *v1.Exit
}

// look continues over ws, whose messages have at most most bytes.
func (v *view) look(ws *websocket.Conn, most int64) {
	ws.SetReadLimit(most)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ws = ws
}

func (v *view) conn() *websocket.Conn {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ws
}

// Offset returns the offset of the next byte of output.
func (v *view) Offset() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.at
}

func (v *view) seek(at int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at = at
}

// Exit returns the exit of the program after Output has ended; nil before.
func (v *view) Exit() *v1.Exit {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exit
}

func (v *view) ended(x *v1.Exit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.exit = x
}

// Close closes the view; the program continues.
func (v *view) Close() error {
	_ = v.conn().Close(websocket.StatusNormalClosure, "") // the connection is closed in any case
	return nil
}

// output yields the data that read reads from one connection, and continues with others that dial
// opens. read returns false when the caller has received everything, and else the reason of the end,
// and whether the connection delivered data.
func (v *view) output(ctx context.Context, dial func(context.Context) error,
	read func(ctx context.Context, yield func([]byte, error) bool) (more, progress bool, err error)) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for attempt := 0; ; {
			more, progress, err := read(ctx, yield)
			if !more {
				return
			}
			if progress {
				attempt = 0
			}
			for again := true; again; attempt++ {
				if attempt >= v.c.retries || !v.c.pause(ctx, &call{}, attempt, err) {
					if ctx.Err() != nil {
						err = v.c.unreachable(ctx, err)
					}
					yield(nil, err)
					return
				}
				err = dial(ctx)
				again = err != nil
			}
		}
	}
}
