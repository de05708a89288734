package client

import (
	"context"

	"github.com/engi-dev/engi/api/v1"
)

// DashboardLink creates a link that signs one browser in to the dashboard with the
// rights of this client's key.
func (c *Client) DashboardLink(ctx context.Context) (v1.DashboardLink, error) {
	return once[v1.DashboardLink](ctx, c, "/v1/dashboard/links", nil)
}
