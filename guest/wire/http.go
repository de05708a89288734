package wire

import (
	"net/http"

	"github.com/engi-dev/engi"
)

const (
	Prefix      = "/engi/"         // of every path of our own service
	TokenHeader = "X-Access-Token" // the same as E2B's
	ErrorHeader = "Engi-Error"     // present on answers whose body is an Error
	HashHeader  = "Engi-Sha256"    // hex digest of a body; a header or a trailer
)

var statuses = map[engi.Kind]int{
	engi.Internal:    http.StatusInternalServerError,
	engi.Invalid:     http.StatusBadRequest,
	engi.NotFound:    http.StatusNotFound,
	engi.Conflict:    http.StatusConflict,
	engi.Denied:      http.StatusForbidden,
	engi.Anonymous:   http.StatusUnauthorized,
	engi.Exhausted:   http.StatusTooManyRequests,
	engi.Unavailable: http.StatusServiceUnavailable,
	engi.Unsupported: http.StatusNotImplemented,
	engi.Expired:     http.StatusGatewayTimeout,
}

// Status returns the HTTP status errors of a kind cross with.
func Status(k engi.Kind) int { return statuses[k] }
