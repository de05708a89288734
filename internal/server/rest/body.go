package rest

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/server/strict"
)

// decode reads the body into v, a pointer to a struct, strictly: unknown
// fields, invalid UTF-8 and bytes after the value are refused.
func (c *call) decode(v any) error {
	typed := checkContentType(c.r)
	if typed != nil && c.r.Header.Get("Content-Type") != curlType {
		return typed
	}
	body, err := c.readJSON()
	if err != nil {
		return err
	}
	defer c.free(body)
	if typed != nil && !bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		return typed
	}
	return wrong(strict.Unmarshal(body, v))
}

// emptyBody reports whether there is no body.
func (c *call) emptyBody() bool {
	return c.r.ContentLength == 0 || c.r.Body == nil || c.r.Body == http.NoBody
}

// uploads reports whether the body has a media type other than JSON that the route accepts.
func (c *call) uploads() bool {
	kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	return err == nil && slices.Contains(c.route.Uploads, kind)
}

// wrong converts the error of a strict decoder to one of the ten kinds.
func wrong(err error) error {
	e, ok := errors.AsType[*strict.Error](err)
	switch {
	case !ok:
		return err
	case len(e.Faults) > 0:
		return httpio.Invalid(e.Faults)
	}
	return httpio.Errorf(0, e.Remedy, "%s", e.Text)
}

// curlType is the media type that curl -d sends for any body. A body of that type that
// begins like an object is read as JSON. A page of another origin cannot abuse this,
// since it has no key.
const curlType = "application/x-www-form-urlencoded"

func checkContentType(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	if given == "" || given == "application/json" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return httpio.Errorf(http.StatusUnsupportedMediaType, "send JSON with 'Content-Type: application/json'",
			"a body of type %.80q cannot be read", given)
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return httpio.Errorf(http.StatusUnsupportedMediaType, "send JSON in UTF-8", "a body in %.40q cannot be read", cs)
	}
	return nil
}

// readJSON is readBody for JSON, with limits on the number and depth of its values.
func (c *call) readJSON() ([]byte, error) {
	body, err := c.readBody()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, httpio.LimitValues(bytes.NewReader(body))); err != nil {
		c.free(body)
		return nil, err
	}
	return body, nil
}

// free releases a body of readBody.
func (c *call) free(body []byte) { c.s.held.Give(c.auth.Owner, int64(len(body))) }

// readBody returns the body, which counts against its owner's share until the caller
// frees it. On an error the caller has nothing to free.
func (c *call) readBody() (_ []byte, err error) {
	s, r := c.s, c.r
	if r.ContentLength > s.maxBody {
		return nil, httpio.TooLarge(s.maxBody)
	}
	rc := http.NewResponseController(c)
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()

	var buf bytes.Buffer
	var taken int64
	defer func() {
		if err != nil {
			s.held.Give(c.auth.Owner, taken)
		}
	}()
	if n := min(r.ContentLength, 1<<20); n > 0 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	for {
		_ = rc.SetReadDeadline(time.Now().Add(httpio.BodyTimeout)) // writers of tests have no deadlines
		n, err := io.CopyN(&buf, r.Body, min(1<<20, s.maxBody+1-int64(buf.Len())))
		if !s.held.Take(c.auth.Owner, n) {
			return nil, engi.Errorf(engi.Exhausted, "the server is reading too many large requests of yours already").
				WithRetry(engi.Retry{AfterMillis: 1000})
		}
		taken += n
		switch {
		case int64(buf.Len()) > s.maxBody:
			return nil, httpio.TooLarge(s.maxBody)
		case errors.Is(err, io.EOF):
			return buf.Bytes(), nil
		case err != nil && r.Context().Err() != nil:
			return nil, engi.Errorf(engi.Expired, "the caller left while sending its request")
		case err != nil:
			return nil, httpio.Errorf(http.StatusRequestTimeout, "send the body faster, or in smaller parts", "reading the body: %v", err)
		}
	}
}
