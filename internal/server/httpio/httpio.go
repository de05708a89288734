// Package httpio is shared by all HTTP APIs of engi: checks of Host and Origin,
// request bodies with deadlines, negotiated formats of responses, streams of
// events as SSE or NDJSON that clients can resume by offset, and problem documents
// for kinds of errors.
package httpio

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A Format is a media type of responses.
type Format string

// Formats of responses.
const (
	JSON   Format = "application/json"
	SSE    Format = "text/event-stream"
	NDJSON Format = "application/x-ndjson"
	HTML   Format = "text/html"
)

var formatNames = map[string]Format{
	"application/json":     JSON,
	"text/event-stream":    SSE,
	"application/x-ndjson": NDJSON,
	"application/ndjson":   NDJSON,
	"application/jsonl":    NDJSON,
	"text/html":            HTML,
}

// Negotiate returns the format that the client prefers; the first one of offered
// among equals.
func Negotiate(r *http.Request, offered ...Format) (Format, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return offered[0], nil
	}
	var best Format
	var most float64
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		weight := 1.0
		if q, ok := params["q"]; ok {
			if weight, err = strconv.ParseFloat(q, 64); err != nil || !(weight > 0) {
				continue
			}
		}
		var named Format
		if family, wildcard := strings.CutSuffix(kind, "/*"); wildcard {
			for _, f := range slices.Backward(offered) {
				if family == "*" || strings.HasPrefix(string(f), family+"/") {
					named = f
				}
			}
			weight *= 0.999 // exact types take precedence over wildcards
		} else if f := formatNames[kind]; slices.Contains(offered, f) {
			named = f
		}
		if named != "" && (weight > most || weight == most && slices.Index(offered, named) < slices.Index(offered, best)) {
			best, most = named, weight
		}
	}
	if best != "" {
		return best, nil
	}
	var types []string
	for _, f := range offered {
		types = append(types, string(f))
	}
	return "", Errorf(http.StatusNotAcceptable, "accept "+strings.Join(types, " or "), "there is no answer of type %.120q", accept)
}
