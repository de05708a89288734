package v1

import "time"

// A DashboardLink signs one browser in.
type DashboardLink struct {
	Path      string    `json:"path" doc:"Path of the link on this server; it is a secret"`
	ExpiresAt time.Time `json:"expires_at"`
}
