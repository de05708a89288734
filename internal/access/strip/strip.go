// Package strip removes keys of engi from the headers of requests to servers in sandboxes, which
// would otherwise get what a client meant for engi. It recognizes keys by their form and does not
// know which keys exist, and it does not remove other credentials.
package strip

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// secret matches the secret of a key, and the form of it that E2B's older clients require.
var secret = regexp.MustCompile(`engi(?:_|%5[Ff])[a-z2-7]{52}|[Ee]2[Bb]_656[Ee]67695[Ff][0-9A-Fa-f]{104}`)

const (
	shortest = 76 // number of characters of a secret in base64
	letters  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)

// urlSafe replaces the characters of base64 for URLs.
var urlSafe = strings.NewReplacer("-", "+", "_", "/")

// Keys removes all headers that contain the secret of a key, plain or in base64. Of the headers
// Cookie and Sec-WebSocket-Protocol, it removes only the cookies and protocols that do.
func Keys(h http.Header) {
	for name, values := range h {
		if !slices.ContainsFunc(values, HasKey) {
			continue
		}
		separator := map[string]string{"Cookie": ";", "Sec-Websocket-Protocol": ","}[name]
		var kept []string
		for part := range strings.SplitSeq(strings.Join(values, separator), separator) {
			if part = strings.TrimSpace(part); separator != "" && part != "" && !HasKey(part) {
				kept = append(kept, part)
			}
		}
		if delete(h, name); len(kept) > 0 {
			h[name] = []string{strings.Join(kept, separator+" ")}
		}
	}
}

// HasKey reports whether text contains the secret of a key, plain or in base64.
func HasKey(text string) bool {
	if secret.MatchString(text) {
		return true
	}
	if len(text) < shortest {
		return false
	}
	for word := range strings.FieldsFuncSeq(urlSafe.Replace(text), func(c rune) bool { return !strings.ContainsRune(letters, c) }) {
		// Four characters are three bytes. Where a group of them begins is not known.
		for start := 0; start < 4 && len(word)-start >= shortest; start++ {
			group := word[start:]
			b, err := base64.RawStdEncoding.DecodeString(group[:len(group)-len(group)%4])
			rest, _ := base64.RawStdEncoding.DecodeString(group[len(group)-len(group)%4:]) // nil for one character, which is no byte
			if err == nil && secret.Match(append(b, rest...)) {
				return true
			}
		}
	}
	return false
}
