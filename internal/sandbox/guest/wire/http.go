package wire

import (
	"encoding/json"
	"net/http"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	Prefix      = "/engi/"         // beginning of every path of engi's own API
	TokenHeader = "X-Access-Token" // carries the token; the same name as in E2B's envd
	ErrorHeader = "Engi-Error"     // set on answers whose body is an Error
	HashHeader  = "Engi-Sha256"    // hex digest of a body; header or trailer
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

// Status returns the HTTP status of errors of a kind.
func Status(k engi.Kind) int { return statuses[k] }

// WriteJSON writes v as the answer to a request. It reports Internal, before it has written
// anything, if v cannot be encoded.
func WriteJSON(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode answer: %v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b) // fails if the client has disconnected
	return nil
}
