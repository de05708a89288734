// Package httpio is what every HTTP surface of engi shares: which Host and
// Origin are accepted, request bodies with deadlines, the negotiated format of a
// response, streams of events as SSE or NDJSON that can be resumed by offset, and
// problem documents for kinds of error. It knows neither what is served nor who
// may see it.
package httpio

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A Format is how an answer is written.
type Format string

// Forms of answers.
const (
	JSON   Format = "application/json"
	SSE    Format = "text/event-stream"
	NDJSON Format = "application/x-ndjson"
)

var formNames = map[string]Format{
	"application/json":     JSON,
	"text/event-stream":    SSE,
	"application/x-ndjson": NDJSON,
	"application/ndjson":   NDJSON,
	"application/jsonl":    NDJSON,
}

// Negotiate returns the form the caller likes best; between equals the first
// of ours.
func Negotiate(r *http.Request, ours ...Format) (Format, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return ours[0], nil
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
		if family, any := strings.CutSuffix(kind, "/*"); any {
			for _, f := range slices.Backward(ours) {
				if family == "*" || strings.HasPrefix(string(f), family+"/") {
					named = f
				}
			}
			weight *= 0.999 // what is named goes before what is not
		} else if f := formNames[kind]; slices.Contains(ours, f) {
			named = f
		}
		if named != "" && (weight > most || weight == most && slices.Index(ours, named) < slices.Index(ours, best)) {
			best, most = named, weight
		}
	}
	if best != "" {
		return best, nil
	}
	var names []string
	for _, f := range ours {
		names = append(names, string(f))
	}
	return "", Errorf(http.StatusNotAcceptable, "accept "+strings.Join(names, " or "), "nothing here is of type %.120q", accept)
}
