package rest

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// Links makes links that sign in a browser once.
type Links interface {
	Link(ctx context.Context, secret string) (code string, expires time.Time, err error)
}

// Dashboard returns the route that makes links to the dashboard; service may be nil.
func Dashboard(service Links) Resource {
	return Resource{tag: "keys", missing: missing(service != nil, "the dashboard"), routes: []Route{
		send(Route{
			Pattern: "POST /v1/dashboard/links", ID: "create-dashboard-link", Summary: "Create a link that signs in to the dashboard", Access: anyKey, Objects: Shared,
			Text:   "The link works once, within a few minutes. The browser that opens it has the rights of this key until it signs out or the key expires.",
			Status: http.StatusCreated, Example: v1.DashboardLink{Path: "/dashboard/sign-in?code=…"},
		}, func(c *call, _ *none, _ none) (v1.DashboardLink, error) {
			code, expires, err := service.Link(c, c.secret())
			c.Header().Set("Cache-Control", "no-store")
			return v1.DashboardLink{Path: "/dashboard/sign-in?code=" + url.QueryEscape(code), ExpiresAt: expires.UTC()}, err
		}),
	}}
}
