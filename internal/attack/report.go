package attack

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

// A Report holds the results of the attacks on a node.
type Report struct {
	Date    time.Time         `json:"date"`
	URL     string            `json:"url"`
	Node    v1.Node           `json:"node"`
	Kernel  string            `json:"kernel,omitempty"` // kernel of the node's host; empty if the host is another machine
	Pins    []Pin             `json:"pins,omitempty"`   // modules that isolate, in the attacking engi; equal to the node's if the versions are equal
	Client  string            `json:"client"`           // version of the engi that attacked
	Policy  *v1.NetworkPolicy `json:"policy,omitempty"` // network policy of sandboxes created without one
	Results []Result          `json:"results"`
	Counts  map[string]int    `json:"counts"` // number of results, by outcome
}

// A Pin is a module at a version, with the age of the version in days.
type Pin struct {
	Module  string `json:"module"`
	Version string `json:"version"`
	Days    int    `json:"days"`
}

// Age returns the days between the commit time in the version of a module
// and now; -1 if the version has no commit time.
func Age(version string, now time.Time) int {
	// for example v0.0.0-20260905035102-160fafc42237
	parts := bytes.Split([]byte(version), []byte("-"))
	if len(parts) < 3 {
		return -1
	}
	stamp := parts[len(parts)-2]
	if dot := bytes.LastIndexByte(stamp, '.'); dot >= 0 {
		stamp = stamp[dot+1:]
	}
	at, err := time.Parse("20060102150405", string(stamp))
	if err != nil {
		return -1
	}
	return int(now.Sub(at) / (24 * time.Hour))
}

// A Signed is a report with a signature of its author over the report's bytes.
type Signed struct {
	Report    json.RawMessage   `json:"report"`
	PublicKey ed25519.PublicKey `json:"public_key"`
	Signature []byte            `json:"signature"`
}

const reportContext = "engi attack report 1\n" // prefix that distinguishes these signatures from signatures of other data

// Sign signs a report.
func Sign(r Report, key ed25519.PrivateKey) (Signed, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return Signed{}, fmt.Errorf("write the report: %w", err)
	}
	return Signed{b, key.Public().(ed25519.PublicKey), ed25519.Sign(key, append([]byte(reportContext), b...))}, nil
}

// Verify returns the report in a file if the signature by the key in the file is
// valid. The caller must check the owner of the key: see [Fingerprint].
func Verify(file []byte) (Report, ed25519.PublicKey, error) {
	var s Signed
	if err := json.Unmarshal(file, &s); err != nil {
		return Report{}, nil, fmt.Errorf("this is no signed report: %w", err)
	}
	if len(s.PublicKey) != ed25519.PublicKeySize {
		return Report{}, nil, errors.New("this is no signed report: it has no public key")
	}
	var b bytes.Buffer // files may be indented
	if err := json.Compact(&b, s.Report); err != nil {
		return Report{}, nil, fmt.Errorf("this is no signed report: %w", err)
	}
	if !ed25519.Verify(s.PublicKey, append([]byte(reportContext), b.Bytes()...), s.Signature) {
		return Report{}, nil, errors.New("the signature does not match this report: the report was changed")
	}
	var r Report
	if err := json.Unmarshal(b.Bytes(), &r); err != nil {
		return Report{}, nil, fmt.Errorf("read the report: %w", err)
	}
	return r, s.PublicKey, nil
}

// Fingerprint returns a short name of a public key, for people to compare.
func Fingerprint(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return "ed25519:" + hex.EncodeToString(sum[:16])
}

// LoadKey returns the key in a file. It creates the file if it does not exist.
func LoadKey(path string) (ed25519.PrivateKey, error) {
	const kind = "ENGI ATTACK KEY"
	b, err := os.ReadFile(path)
	if err == nil {
		block, _ := pem.Decode(b)
		if block == nil || block.Type != kind || len(block.Bytes) != ed25519.SeedSize {
			return nil, fmt.Errorf("%s is no key for reports", path)
		}
		return ed25519.NewKeyFromSeed(block.Bytes), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := pem.Encode(f, &pem.Block{Type: kind, Bytes: key.Seed()}); err != nil {
		f.Close()
		return nil, err
	}
	return key, f.Close()
}

// Count counts results by outcome.
func Count(results []Result) map[string]int {
	n := map[string]int{Held: 0, Broke: 0, Skipped: 0}
	for _, r := range results {
		n[r.Outcome]++
	}
	return n
}
