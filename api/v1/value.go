package v1

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Duration is a non-negative duration; in JSON a string of decimal
// numbers with units: "1.5s", "2m30s", "7d". Units are ns, us (or µs), ms, s, m,
// h, and d for 24 hours.
type Duration time.Duration

// ParseDuration parses a text that String returns.
func ParseDuration(s string) (Duration, error) {
	text, days := s, time.Duration(0)
	if n, rest, ok := strings.Cut(s, "d"); ok {
		v, err := strconv.ParseUint(n, 10, 31)
		if err != nil || time.Duration(v) > math.MaxInt64/(24*time.Hour) {
			return 0, errDuration(s)
		}
		if days = time.Duration(v) * 24 * time.Hour; rest == "" {
			return Duration(days), nil
		}
		text = rest
	}
	if text == "" || strings.ContainsAny(text[:1], "+-") {
		return 0, errDuration(s)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > math.MaxInt64-days {
		return 0, errDuration(s)
	}
	return Duration(days + d), nil
}

func errDuration(s string) error {
	return fmt.Errorf(`%.40q is not a duration: write a number with a unit, such as "500ms", "30s" or "2h"`, s)
}

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns d in the form of JSON.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return []byte(`"` + d.String() + `"`), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	s, ok := unquote(b)
	if !ok {
		if string(b) == "null" {
			return nil
		}
		return fmt.Errorf(`%.40s is not a duration: write a string with a unit, such as "30s"`, b)
	}
	v, err := ParseDuration(s)
	if err == nil {
		*d = v
	}
	return err
}

// Bytes is a non-negative size; in JSON a whole number, or a string of a
// decimal number and a unit: B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB,
// TiB (powers of 1024).
type Bytes int64

var byteUnits = map[string]int64{
	"": 1, "B": 1,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// ParseBytes parses a size with or without unit.
func ParseBytes(s string) (Bytes, error) {
	digits := strings.TrimRight(s, "BkKMGTi ")
	unit, ok := byteUnits[strings.TrimLeft(s[len(digits):], " ")]
	if !ok || digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, errBytes(s)
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if n > math.MaxInt64/unit {
			return 0, errBytes(s)
		}
		return Bytes(n * unit), nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	// 2^63 is the smallest float that overflows an int64.
	if f *= float64(unit); err != nil || unit == 1 || f >= 1<<63 {
		return 0, errBytes(s)
	}
	return Bytes(f), nil
}

func errBytes(s string) error {
	return fmt.Errorf(`%.40q is not a size: write a number of bytes, or a number with B, kB, MB, GB, KiB, MiB or GiB, such as "512MiB"`, s)
}

// String returns b in the largest unit that needs no fraction.
func (b Bytes) String() string {
	for _, u := range [...]string{"TiB", "GiB", "MiB", "KiB"} {
		if n := Bytes(byteUnits[u]); b != 0 && b%n == 0 {
			return strconv.FormatInt(int64(b/n), 10) + u
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// UnmarshalJSON implements json.Unmarshaler. Sizes are encoded as numbers, so
// there is no MarshalJSON.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if s, ok := unquote(data); ok {
		v, err := ParseBytes(s)
		if err == nil {
			*b = v
		}
		return err
	}
	n, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil || n < 0 {
		return errBytes(string(data))
	}
	*b = Bytes(n)
	return nil
}

// Mode holds the permission bits of a file; in JSON an octal string, "0644".
type Mode uint32

// ParseMode parses a text that String returns.
func ParseMode(s string) (Mode, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || n > 0o777 || strings.ContainsAny(s, "+-_") {
		return 0, fmt.Errorf(`%.40q is not a file mode: write an octal string of permission bits, such as "0644"`, s)
	}
	return Mode(n), nil
}

// String returns m in the form of JSON.
func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalJSON implements json.Marshaler.
func (m Mode) MarshalJSON() ([]byte, error) { return []byte(`"` + m.String() + `"`), nil }

// UnmarshalJSON implements json.Unmarshaler. JSON has no octal numbers, so a
// number is refused: 644 would mean 0o1204, which is never intended.
func (m *Mode) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	s, ok := unquote(data)
	if !ok {
		return fmt.Errorf(`%.40s is not a file mode: write an octal string of permission bits, such as "0644"`, data)
	}
	v, err := ParseMode(s)
	if err == nil {
		*m = v
	}
	return err
}

// unquote decodes a JSON string without escapes except for µ, which some
// encoders escape; no other value of this package needs an escape.
func unquote(b []byte) (string, bool) {
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return "", false
	}
	return strings.ReplaceAll(string(b[1:len(b)-1]), `\u00b5`, "µ"), true
}
