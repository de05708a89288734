// Package flow writes answers that take their time: it negotiates their form,
// sends events as SSE or NDJSON with offsets to come back to, keeps characters
// whole, and bounds how long a slow caller is waited for. It knows neither
// what the events mean nor who may see them.
package flow

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/api/problem"
)

// A Form is how an answer is written.
type Form string

// Forms of answers.
const (
	JSON   Form = "application/json"
	SSE    Form = "text/event-stream"
	NDJSON Form = "application/x-ndjson"
)

var formNames = map[string]Form{
	"application/json":     JSON,
	"text/event-stream":    SSE,
	"application/x-ndjson": NDJSON,
	"application/ndjson":   NDJSON,
	"application/jsonl":    NDJSON,
}

// Negotiate returns the form the caller likes best; between equals the first
// of ours.
func Negotiate(r *http.Request, ours ...Form) (Form, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return ours[0], nil
	}
	var best Form
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
		var named Form
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
	return "", problem.Refuse(http.StatusNotAcceptable, "accept "+strings.Join(names, " or "), "nothing here is of type %.120q", accept)
}
