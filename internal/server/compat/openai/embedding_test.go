package openai_test

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/engi-dev/engi/test/apitest"
)

func TestEmbeddings(t *testing.T) {
	w, _ := apitest.Serve(t, nil)
	type embeddings struct {
		Model string
		Data  []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage map[string]int
	}
	e := apitest.Read[embeddings](t, apitest.Ask(t, w, "POST", "/v1/embeddings", `{"model":"demo:lengths","input":["a","four"],"dimensions":2}`), 200)
	if len(e.Data) != 2 || e.Data[1].Index != 1 || string(e.Data[1].Embedding) != "[4,0.5]" || e.Model != "demo:lengths" || e.Usage["prompt_tokens"] != 2 {
		t.Errorf("%+v", e)
	}
	e = apitest.Read[embeddings](t, apitest.Ask(t, w, "POST", "/v1/embeddings", `{"model":"lengths","input":"four","encoding_format":"base64","user":"u"}`), 200)
	var text string
	if err := json.Unmarshal(e.Data[0].Embedding, &text); err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != 8 || math.Float32frombits(uint32(raw[0])|uint32(raw[1])<<8|uint32(raw[2])<<16|uint32(raw[3])<<24) != 4 {
		t.Errorf("%v %x", err, raw)
	}
	for body, want := range map[string]string{
		`"input":[]`: "input", `"input":""`: "input", `"input":["a",""]`: "input", `"input":[1,2]`: "input", `"input":[[1,2]]`: "input",
		`"input":["` + strings.Repeat(`x","`, 2048) + `x"]`: "input", `"input":"` + strings.Repeat("x", 1<<20+1) + `"`: "input",
		`"input":"x","dimensions":3`: "dimensions", `"input":"x","encoding_format":"int8"`: "encoding_format", `"input":"x","truncate":true`: "truncate",
	} {
		rec := apitest.Ask(t, w, "POST", "/v1/embeddings", `{"model":"demo:lengths",`+body+`}`)
		status := 400
		if len(body) > 1<<20 {
			status = 413
		}
		if rec.Code != status || !strings.Contains(rec.Body.String(), `"param":"`+want+`"`) {
			t.Errorf("%.80s: %d %.300s", body, rec.Code, rec.Body)
		}
	}
	for _, model := range []string{"echo", "", "s"} {
		if rec := apitest.Ask(t, w, "POST", "/v1/embeddings", `{"model":"`+model+`","input":"x"}`); rec.Code != 404 || !strings.Contains(rec.Body.String(), "model_not_found") || !strings.Contains(rec.Body.String(), "demo:lengths") {
			t.Errorf("%q: %d %s", model, rec.Code, rec.Body)
		}
	}
	if rec := apitest.Ask(t, w, "GET", "/v1/models", ""); !strings.Contains(rec.Body.String(), `"demo:lengths"`) {
		t.Errorf("%s", rec.Body)
	}
	if rec := apitest.Ask(t, w, "GET", "/v1/models/demo:lengths", ""); rec.Code != 200 {
		t.Errorf("%s", rec.Body)
	}
	bare, _ := apitest.Serve(t, func(o *apitest.Options) { o.Embedder = nil })
	if rec := apitest.Ask(t, bare, "POST", "/v1/embeddings", `{"model":"x","input":"x"}`); rec.Code != 501 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := apitest.Ask(t, bare, "GET", "/v1/models", ""); rec.Code != 200 || strings.Contains(rec.Body.String(), "lengths") {
		t.Errorf("%s", rec.Body)
	}
}
