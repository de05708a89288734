package llm

import (
	"cmp"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/engi-dev/engi"
)

// classify gives an error that is not a provider's answer its kind.
func classify(model string, err error) error {
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	if engi.KindOf(err) == engi.Expired {
		return engi.Errorf(engi.Expired, "ask %s: %v", model, err)
	}
	return engi.Errorf(engi.Unavailable, "ask %s: %s", model, line(err.Error())).
		WithRemedy("check the provider's address in the configuration, and whether it runs")
}

// refused gives a refusal of a provider its kind. What the provider said is
// shown in one line at most: it is not ours and may quote what was sent.
func refused(model string, status int, header http.Header, body []byte) error {
	text := line(said(body))
	retry := engi.Retry{AfterMillis: retryAfter(header).Milliseconds()}
	switch {
	case status >= 300 && status < 400:
		return engi.Errorf(engi.Invalid, "ask %s: the provider redirects (%d), which is not followed", model, status).
			WithRemedy("set the provider's url in the configuration to where it answers itself")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return engi.Errorf(engi.Denied, "ask %s: the provider does not take the key (%d)", model, status).
			WithRemedy("check the provider's api_key_env in the configuration and that variable")
	case contextTooLong.MatchString(text) || status == http.StatusRequestEntityTooLarge:
		return engi.Errorf(engi.Invalid, "ask %s: the conversation is too long for the model: %s", model, text).
			WithRemedy("begin a new conversation, or choose a model that reads more")
	case status == http.StatusNotFound:
		return engi.Errorf(engi.Invalid, "ask %s: the provider does not know this model: %s", model, text).
			WithRemedy("check the name of the model in the configuration or the request")
	case status == http.StatusTooManyRequests:
		return engi.Errorf(engi.Exhausted, "ask %s: the provider's rate is reached: %s", model, text).WithRetry(retry)
	case status >= 500 || status == http.StatusRequestTimeout || status == http.StatusConflict || header.Get("X-Should-Retry") == "true":
		return engi.Errorf(engi.Unavailable, "ask %s: %s", model, text).WithRetry(retry)
	}
	return engi.Errorf(engi.Invalid, "ask %s: the provider refused (%d): %s", model, status, text)
}

// contextTooLong matches what providers say to a conversation that does not
// fit the model: OpenAI, Alibaba, Vercel, Anthropic, Gemini.
var contextTooLong = regexp.MustCompile(`maximum context length (is|of) \d|Range of input length should be \[|Input too long:\s*\d|prompt is too long:\s*\d|input token count.*exceeds.*maximum`)

// failed is an error that a provider reports in the middle of a stream. They
// are nearly always about a moment of overload.
func failed(model string, event []byte) error {
	text := line(said(event))
	if contextTooLong.MatchString(text) {
		return refused(model, http.StatusRequestEntityTooLarge, nil, event)
	}
	return engi.Errorf(engi.Unavailable, "ask %s: %s", model, text)
}

// brokenOff is the error of an answer without an end.
func brokenOff(model string) error {
	return engi.Errorf(engi.Unavailable, "ask %s: the answer broke off", model)
}

// unreadable is the error of an answer that is not what the format says.
func unreadable(model string, err error) error {
	return engi.Errorf(engi.Unavailable, "ask %s: the answer cannot be read: %s", model, line(err.Error())).
		WithRemedy("check the provider's url and dialect in the configuration")
}

// temporary reports whether a retry, or another model, may succeed.
func temporary(err error) bool {
	switch engi.KindOf(err) {
	case engi.Unavailable, engi.Exhausted:
		return true
	}
	return false
}

func retryAfter(h http.Header) time.Duration {
	wait := func(name string, unit time.Duration) time.Duration {
		n, err := strconv.ParseFloat(h.Get(name), 64)
		if err != nil || !(n > 0) {
			return 0
		}
		return time.Duration(min(n*float64(unit), float64(maxRetryAfter)))
	}
	return cmp.Or(wait("Retry-After-Ms", time.Millisecond), wait("Retry-After", time.Second))
}

const (
	maxRetryAfter = time.Hour
	maxSaid       = 300 // bytes of a provider's text in ours
)

// line is the beginning of text, printable and on one line.
func line(text string) string {
	var b []byte
	for _, r := range text {
		if len(b) >= maxSaid {
			return string(b) + "…"
		}
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			r = ' '
		case r < ' ' || r == 0x7f || r == '\ufffd':
			continue
		}
		b = append(b, string(r)...)
	}
	return string(b)
}
