package v1

import "time"

// A Port is a TCP port of a sandbox.
type Port struct {
	Port      int    `json:"port" minimum:"1" maximum:"65535" example:"8080"`
	Listening bool   `json:"listening"`
	Process   string `json:"process,omitempty" doc:"Name of the listening program, if it is known" example:"node"`
	URL       string `json:"url,omitempty" format:"uri" doc:"URL of the port; absent if the server has no previews" example:"http://8080-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
}

// A LinkRequest asks for a link to a private port.
type LinkRequest struct {
	TTL Duration `json:"ttl,omitempty" doc:"Lifetime of the link; absent means one hour" example:"1h"`
}

// A Link gives its holder access to a private port until it expires.
type Link struct {
	URL       string    `json:"url" format:"uri"`
	ExpiresAt time.Time `json:"expires_at"`
}
