package client

import (
	"context"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// RunScript runs a small program in JavaScript or TypeScript. A program
// that fails is a result, not an error.
func (c *Client) RunScript(ctx context.Context, q v1.ScriptRequest) (v1.ScriptResult, error) {
	return send[v1.ScriptResult](ctx, c, http.MethodPost, "/v1/scripts", q)
}

// ScriptAPIs returns the functions that scripts have below api.
func (c *Client) ScriptAPIs(ctx context.Context) (v1.ScriptAPIs, error) {
	return get[v1.ScriptAPIs](ctx, c, "/v1/scripts/apis", nil)
}
