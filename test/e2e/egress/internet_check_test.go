package egress

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/test/env"
)

// TestInternet checks the properties of the simulated Internet on which the attacks rely: every
// address answers the test's host, from the requested address.
func TestInternet(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	w.name("check.test", "93.184.100.1")
	for _, at := range []string{"93.184.216.10", "169.254.169.254", "10.1.2.3", "[fd00:ec2::254]", "[64:ff9b::a9fe:a9fe]", "[2606:2800::66]"} {
		c := http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		for _, url := range []string{"http://" + at + "/?check", "https://" + at + "/?check"} {
			resp, err := c.Get(url)
			if err != nil {
				t.Errorf("%s: %v", url, err)
				continue
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !strings.HasPrefix(string(b), reached) {
				t.Errorf("%s: %q, %v", url, b, err)
			}
		}
		u, err := net.Dial("udp", at+":5000")
		if err != nil {
			t.Fatal(err)
		}
		u.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(u, "check")
		buf := make([]byte, 100)
		if n, err := u.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), reached) {
			t.Errorf("udp %s: %q, %v", at, buf[:n], err)
		}
		u.Close()
	}
	if len(w.whoHeard("check", "request")) < 12 {
		t.Error("requests were not heard")
	}
	r := &net.Resolver{PreferGo: true, Dial: dialResolver}
	if a, err := r.LookupHost(t.Context(), "check.test"); err != nil || len(a) != 1 || a[0] != "93.184.100.1" {
		t.Errorf("check.test: %v, %v", a, err)
	}
	if a, err := r.LookupHost(t.Context(), "nothing.test"); err == nil {
		t.Errorf("nothing.test: %v", a)
	}
}
