package llm

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/mask"
)

// A source names a model in errors. The text of its provider enters errors,
// and thereby logs and records, only through the methods of source.
type source struct {
	name   string   // provider:model
	secret [][]byte // forms of the keys that were sent to the provider
}

// source returns the source of the errors of a model of p.
func (p Provider) source(name string) source {
	s := source{name, mask.Forms(p.Key)}
	for _, value := range p.Headers {
		s.secret = append(s.secret, mask.Forms(value)...)
		if at := strings.LastIndexByte(value, ' '); at >= 0 { // the key follows Bearer or another scheme
			s.secret = append(s.secret, mask.Forms(value[at+1:])...)
		}
	}
	return s
}

// classify returns an error other than a provider's answer with its kind.
func (s source) classify(err error) error {
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	if engi.Is(err, engi.Expired) {
		return engi.Errorf(engi.Expired, "ask %s: %s", s.name, s.line(err.Error()))
	}
	return engi.Errorf(engi.Unavailable, "ask %s: %s", s.name, s.line(err.Error())).
		WithRemedy("check the provider's address in the configuration, and whether it runs")
}

// refused returns the error for a provider's refusal. It shows at most one line of the
// provider's text, without keys: the text is not trusted and may quote the
// request.
func (s source) refused(status int, header http.Header, body []byte) error {
	err := s.refusal(status, header, body)
	if _, code := fault(body); slices.Contains(unreadableCodes, code) {
		return &unreadable{err, code + ": " + s.line(said(body))}
	}
	return err
}

func (s source) refusal(status int, header http.Header, body []byte) error {
	text := s.line(said(body))
	retry := engi.Retry{AfterMillis: retryAfter(header).Milliseconds()}
	switch {
	case status >= 300 && status < 400:
		return engi.Errorf(engi.Invalid, "ask %s: the provider redirects (%d), which is not followed", s.name, status).
			WithRemedy("set the provider's url in the configuration to the address to which it redirects")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return engi.Errorf(engi.Denied, "ask %s: the provider does not take the key (%d)", s.name, status).
			WithRemedy("check the provider's api_key_env in the configuration and that variable")
	case contextTooLong.MatchString(text) || status == http.StatusRequestEntityTooLarge:
		return engi.Errorf(engi.Invalid, "ask %s: the conversation is too long for the model: %s", s.name, text).
			WithRemedy("begin a new conversation, or choose a model that reads more")
	case status == http.StatusNotFound:
		return engi.Errorf(engi.Invalid, "ask %s: the provider does not know this model: %s", s.name, text).
			WithRemedy("check the name of the model in the configuration or the request")
	case status == http.StatusTooManyRequests:
		return engi.Errorf(engi.Exhausted, "ask %s: the provider's rate limit is reached: %s", s.name, text).WithRetry(retry)
	case status >= 500 || status == http.StatusRequestTimeout || status == http.StatusConflict || header.Get("X-Should-Retry") == "true":
		return engi.Errorf(engi.Unavailable, "ask %s: %s", s.name, text).WithRetry(retry)
	}
	return engi.Errorf(engi.Invalid, "ask %s: the provider refused (%d): %s", s.name, status, text)
}

// contextTooLong matches the errors of providers for a conversation that exceeds
// the model's context: OpenAI, Alibaba, Vercel, Anthropic, Gemini.
var contextTooLong = regexp.MustCompile(`maximum context length (is|of) \d|Range of input length should be \[|Input too long:\s*\d|prompt is too long:\s*\d|input token count.*exceeds.*maximum`)

// failed returns the error that a provider reports in the middle of a stream. Such errors
// are nearly always temporary overload, unless they say otherwise.
func (s source) failed(event []byte) error {
	text := s.line(said(event))
	if contextTooLong.MatchString(text) {
		return s.refused(http.StatusRequestEntityTooLarge, nil, event)
	}
	status, code := fault(event)
	if slices.Contains(unreadableCodes, code) {
		status = http.StatusBadRequest
	}
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusNotFound,
		http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
		return s.refused(status, nil, event)
	}
	return engi.Errorf(engi.Unavailable, "ask %s: %s", s.name, text)
}

// fault returns the HTTP status that a provider's error contains, and its code
// as a word; zero values if they are missing.
func fault(raw []byte) (status int, code string) {
	var e struct {
		Error struct {
			Code   any
			Status int `json:"status_code"`
		}
	}
	if json.Unmarshal(raw, &e) != nil {
		return 0, ""
	}
	switch c := e.Error.Code.(type) {
	case float64:
		status = int(c)
	case string:
		code = c
	}
	return cmp.Or(e.Error.Status, status), code
}

// unreadableCodes are Groq's codes for model output that Groq could not parse and
// therefore withholds. The same request often succeeds when it is repeated.
var unreadableCodes = []string{"tool_use_failed", "output_parse_failed", "json_validate_failed"}

// An unreadable is a provider's error for model output that it withholds.
type unreadable struct {
	error
	reason string
}

func (u *unreadable) Unwrap() error { return u.error }

// brokenOff returns the error for an answer without an end.
func (s source) brokenOff() error {
	return engi.Errorf(engi.Unavailable, "ask %s: the answer broke off", s.name)
}

// unreadable returns the error for an answer that does not follow the format.
func (s source) unreadable(err error) error {
	return engi.Errorf(engi.Unavailable, "ask %s: the answer cannot be read: %s", s.name, s.line(err.Error())).
		WithRemedy("check the provider's url and dialect in the configuration")
}

// temporary reports whether a retry, or another model, may succeed.
func temporary(err error) bool { return engi.Is(err, engi.Unavailable, engi.Exhausted) }

func retryAfter(h http.Header) time.Duration {
	wait := func(name string, unit time.Duration) time.Duration {
		n, err := strconv.ParseFloat(h.Get(name), 64)
		if err != nil || !(n > 0) {
			return 0
		}
		return time.Duration(min(n*float64(unit), float64(maxRetryAfter)))
	}
	d := cmp.Or(wait("Retry-After-Ms", time.Millisecond), wait("Retry-After", time.Second))
	if at, err := http.ParseTime(h.Get("Retry-After")); d == 0 && err == nil {
		// Use the provider's clock, which may differ from this one.
		now, err := http.ParseTime(h.Get("Date"))
		if err != nil {
			now = time.Now()
		}
		d = min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return d
}

const (
	maxRetryAfter = time.Hour
	maxSaid       = 300 // maximum bytes of a provider's text in an error
)

// line returns the beginning of text, printable, on one line and without secrets. It
// removes secrets before it cuts the text, because a part of a key is not recognized.
func (s source) line(text string) string {
	limit := maxSaid
	for _, f := range s.secret {
		limit = max(limit, maxSaid+len(f))
	}
	return clip.Text(mask.Text(printable(text, limit), s.secret), maxSaid)
}

// line returns the beginning of a text that does not quote a provider.
func line(text string) string { return source{}.line(text) }

// printable returns the beginning of text, on one line and at most a few bytes
// longer than limit.
func printable(text string, limit int) string {
	var b []byte
	for _, r := range text {
		if len(b) > limit {
			break
		}
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			r = ' '
		case r < ' ' || r == 0x7f || r == '\ufffd':
			continue
		}
		b = utf8.AppendRune(b, r)
	}
	return string(b)
}
