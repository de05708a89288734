package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// TestListsInPages reads lists with more objects than a page may have, page by page,
// and compares them with the whole and with what the client returns. Whoever owns
// none of them learns nothing by going on after one.
func TestListsInPages(t *testing.T) {
	n, keys := nodeWithRecords(t, 1100)
	type list struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
		NextCursor string `json:"next_cursor"`
	}
	read := func(path, who string) (ids []string, next string) {
		t.Helper()
		w := n.answer("GET", path, "", "Authorization", "Bearer "+keys[who])
		var l list
		if err := json.Unmarshal(w.Body.Bytes(), &l); w.Code != 200 || err != nil {
			t.Fatalf("%s: %d %v %.300s", path, w.Code, err, w.Body)
		}
		for _, x := range l.Items {
			ids = append(ids, x.ID)
		}
		return ids, l.NextCursor
	}
	c := client.New(n.Endpoint().URL, keys["admin"])
	ctx := t.Context()
	none := client.New(n.Endpoint().URL, keys["bob"])
	if all, err := none.Volumes(ctx); all == nil || len(all) > 0 || err != nil {
		t.Errorf("who has no volumes gets %#v, %v, want an empty list", all, err)
	}
	for path, whole := range map[string]func() (int, error){
		"/v1/keys":      func() (int, error) { x, err := c.Keys(ctx); return len(x), err },
		"/v1/secrets":   func() (int, error) { x, err := c.Secrets(ctx); return len(x), err },
		"/v1/sessions":  func() (int, error) { x, err := c.Sessions(ctx); return len(x), err },
		"/v1/snapshots": func() (int, error) { x, err := c.Snapshots(ctx, ""); return len(x), err },
		"/v1/volumes":   func() (int, error) { x, err := c.Volumes(ctx); return len(x), err },
		"/v1/docs":      func() (int, error) { x, err := c.Documents(ctx); return len(x), err },
		"/v1/ssh-keys":  func() (int, error) { x, err := c.SSHKeys(ctx); return len(x), err },
		"/v1/webhooks":  func() (int, error) { x, err := c.Webhooks(ctx); return len(x), err },
	} {
		for _, who := range []string{"admin", "ann"} {
			all, next := read(path, who)
			if len(all) < 90 || next != "" {
				t.Errorf("%s of %s: %d objects, and then %q", path, who, len(all), next)
			}
			var got []string
			for cursor := ""; ; {
				at := fmt.Sprintf("%s?limit=%d", path, 37)
				if cursor != "" {
					at += "&cursor=" + cursor
				}
				ids, next := read(at, who)
				got = append(got, ids...)
				if cursor = next; cursor == "" {
					break
				}
			}
			if !slices.Equal(got, all) {
				t.Errorf("%s of %s: pages have %d objects, the list %d, or in another order", path, who, len(got), len(all))
			}
			if who == "admin" {
				if n, err := whole(); n != len(all) || err != nil {
					t.Errorf("%s: the client has %d of %d, %v", path, n, len(all), err)
				}
			}
		}
		anns, _ := read(path+"?limit=5", "ann")
		var answers []string
		for _, cursor := range []string{anns[2], anns[2][:len(anns[2])-1] + "z", "0", "%27%20OR%201"} {
			w := n.answer("GET", path+"?cursor="+cursor, "", "Authorization", "Bearer "+keys["bob"])
			var p v1.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 400 || p.Kind != v1.Invalid {
				t.Errorf("%s of bob after %s: %d %.300s", path, cursor, w.Code, w.Body)
				continue
			}
			answers = append(answers, p.Detail)
		}
		if len(slices.Compact(answers)) != 1 {
			t.Errorf("%s: bob can tell what there is: %q", path, answers)
		}
	}
}
