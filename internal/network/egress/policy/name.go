package policy

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// idnaProfile maps international names in the same way as browsers, but leaves characters that are
// ASCII to canonical, which is stricter about some and laxer about underscores
// and dashes in third place.
var idnaProfile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false),
	idna.StrictDomainName(false), idna.CheckHyphens(false))

// CheckName returns the canonical form of a host name: lower-case ASCII
// (international names as xn--), without a dot at the end. It reports Invalid for
// a text that is not a valid name or could be read as an address: labels and names that
// are too long or empty, characters other than letters, digits, dashes and
// underscores, dashes at the ends of labels, a last label that is a number.
func CheckName(name string) (string, error) {
	if len(name) > 4*maxName { // checked first, since the mapping is expensive
		return "", badName(name, "is too long")
	}
	if !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError) {
		return "", badName(name, "is not valid UTF-8")
	}
	ascii := name
	if !isASCII(name) || strings.Contains(strings.ToLower(name), "xn--") {
		mapped, err := idnaProfile.ToASCII(name)
		if err != nil {
			return "", badName(name, "is not a valid international name")
		}
		ascii = mapped
	}
	c, problem := canonical(ascii)
	if problem != "" {
		return "", badName(name, problem)
	}
	return c, nil
}

func badName(name, problem string) *engi.Error {
	return engi.Errorf(engi.Invalid, "host name %q %s", clip.Text(name, maxShown), problem).
		WithRemedy("write a name such as example.com or *.example.com, or an address")
}

const (
	maxName  = 253 // maximum length of a name, as in DNS, without the final dot
	maxLabel = 63
)

// canonical does the same as CheckName for names in ASCII. It allocates only if the name has
// capital letters. The problem is empty if the name is valid.
func canonical(name string) (c, problem string) {
	if n := len(name); n > 0 && name[n-1] == '.' {
		name = name[:n-1]
	}
	if name == "" {
		return "", "is empty"
	}
	if len(name) > maxName {
		return "", "is longer than 253 characters"
	}
	capitals, label := false, 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '.' {
			switch b := name[i]; {
			case b >= 'A' && b <= 'Z':
				capitals = true
			case b >= 'a' && b <= 'z', b >= '0' && b <= '9', b == '-', b == '_':
			default:
				return "", "has invalid characters"
			}
			continue
		}
		switch {
		case i == label:
			return "", "has an empty part"
		case i-label > maxLabel:
			return "", "has a part longer than 63 characters"
		case name[label] == '-' || name[i-1] == '-':
			return "", "has a part that begins or ends with a dash"
		}
		if i == len(name) && isNumber(name[label:]) {
			return "", "ends in a number: it is neither a name nor an address in the usual notation"
		}
		label = i + 1
	}
	if capitals {
		name = strings.ToLower(name)
	}
	return name, ""
}

// isNumber reports whether some programs could take a label for a part of an IPv4
// address.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(strings.ToLower(label), "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

const maxShown = 100 // maximum number of bytes of an untrusted text in an error

// isBelow reports whether name is suffix or a name below it.
func isBelow(name, suffix string) bool {
	return strings.HasSuffix(name, suffix) &&
		(len(name) == len(suffix) || name[len(name)-len(suffix)-1] == '.')
}
