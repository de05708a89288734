package rest

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/internal/server/httpio"
)

// wantsWebSocket returns an error unless the request asks for a WebSocket.
func wantsWebSocket(c *call, why, remedy string) error {
	if strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		return nil
	}
	e := httpio.Errorf(http.StatusUpgradeRequired, remedy, "%s", why)
	e.Header = http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}
	return e
}

// carry calls serve with a connection whose bytes are the binary messages of a WebSocket.
// The connection is open after accept, which returns nil if accept has refused the client itself.
// An error that serve returns before accept is sent to the client. ctx ends with the caller's key
// and when the server shuts down; the connection may be used for last messages after that.
func carry(c *call, why, remedy string, serve func(ctx context.Context, accept func() net.Conn) error) error {
	if err := wantsWebSocket(c, why, remedy); err != nil {
		return err
	}
	leave, err := c.s.streams.Join(c.auth.ID)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := c.waiting()
	defer cancel()
	var ws *websocket.Conn
	defer func() {
		if ws != nil {
			ws.CloseNow()
		}
	}()
	return serve(ctx, func() net.Conn {
		var err error
		if ws, err = websocket.Accept(c, c.r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled}); err != nil {
			return nil // Accept has sent the response
		}
		return websocket.NetConn(context.WithoutCancel(ctx), ws, websocket.MessageBinary)
	})
}
