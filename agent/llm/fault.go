package llm

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"charm.land/fantasy"

	"github.com/engi-dev/engi"
)

// classify gives a provider's error its kind. What the provider said is shown
// in one line at most: it is not ours and may quote what was sent.
func classify(model string, err error) error {
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	if engi.KindOf(err) == engi.Expired {
		return engi.Errorf(engi.Expired, "ask %s: %v", model, err)
	}
	p, ok := errors.AsType[*fantasy.ProviderError](err)
	if !ok {
		return engi.Errorf(engi.Unavailable, "ask %s: %s", model, line(err.Error())).
			WithRemedy("check the provider's address in the configuration, and whether it runs")
	}
	said := line(p.Message)
	switch code := p.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden || p.AuthError:
		return engi.Errorf(engi.Denied, "ask %s: the provider does not take the key (%d)", model, code).
			WithRemedy("check the provider's api_key_env in the configuration and that variable")
	case p.IsContextTooLarge() || code == http.StatusRequestEntityTooLarge:
		return engi.Errorf(engi.Invalid, "ask %s: the conversation is too long for the model: %s", model, said).
			WithRemedy("begin a new conversation, or choose a model that reads more")
	case code == http.StatusNotFound:
		return engi.Errorf(engi.Invalid, "ask %s: the provider does not know this model: %s", model, said).
			WithRemedy("check the name of the model in the configuration or the request")
	case code == http.StatusTooManyRequests:
		e := engi.Errorf(engi.Exhausted, "ask %s: the provider's rate is reached: %s", model, said)
		return e.WithRetry(engi.Retry{AfterMillis: retryAfter(p).Milliseconds()})
	case p.IsRetryable() || code == 0:
		e := engi.Errorf(engi.Unavailable, "ask %s: %s", model, said)
		return e.WithRetry(engi.Retry{AfterMillis: retryAfter(p).Milliseconds()})
	}
	return engi.Errorf(engi.Invalid, "ask %s: the provider refused (%d): %s", model, p.StatusCode, said)
}

// temporary reports whether a retry, or another model, may succeed.
func temporary(err error) bool {
	switch engi.KindOf(err) {
	case engi.Unavailable, engi.Exhausted:
		return true
	}
	return false
}

func retryAfter(p *fantasy.ProviderError) time.Duration {
	for name, value := range p.ResponseHeaders {
		switch http.CanonicalHeaderKey(name) {
		case "Retry-After-Ms":
			if ms, err := strconv.ParseFloat(value, 64); err == nil && ms > 0 {
				return min(time.Duration(ms*float64(time.Millisecond)), maxRetryAfter)
			}
		case "Retry-After":
			if s, err := strconv.ParseFloat(value, 64); err == nil && s > 0 {
				return min(time.Duration(s*float64(time.Second)), maxRetryAfter)
			}
		}
	}
	return 0
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
