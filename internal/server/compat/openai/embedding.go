package openai

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/compat/dialect"
	"github.com/engi-dev/engi/internal/server/rest"
)

// An Embedder converts texts to vectors. It is safe for concurrent use.
type Embedder interface {
	// Name identifies the vectors: only vectors with the same name are comparable.
	Name() string
	// Embed returns one vector of length 1 for each text, all with the same dimension.
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}

// Limits of one request.
const (
	maxTexts     = 2048
	maxTextBytes = 1 << 20 // bytes of all texts
)

// embeddings returns the route for vectors of texts.
func (f *front) embeddings() rest.Route {
	return rest.Foreign(rest.Route{
		Pattern: "POST /v1/embeddings", ID: "create-embeddings", Summary: "Create embeddings (OpenAI)", Access: change, Objects: rest.Owned,
		Text: "model is the node's embedding model, which GET /v1/models lists. One token is counted for four bytes.", Error: errorOf,
	}, f.embed)
}

func (f *front) embed(ex *rest.Exchange, _ *struct{}) error {
	service := f.embedder
	if service == nil {
		return engi.Errorf(engi.Unsupported, "this node has no embedder").WithRemedy("set models.embedding in its configuration")
	}
	var q struct {
		Model      string          `json:"model"`
		Input      json.RawMessage `json:"input"`
		Encoding   string          `json:"encoding_format"`
		Dimensions *int            `json:"dimensions"`
	}
	if _, err := dialect.Decode(ex, &q, map[string][]string{"user": nil}); err != nil {
		return err
	}
	if name := service.Name(); q.Model != name && !strings.HasSuffix(name, ":"+q.Model) {
		return engi.Errorf(engi.NotFound, "there is no embedder %.80q", q.Model).WithRemedy("use %s", name)
	}
	if q.Encoding != "" && q.Encoding != "float" && q.Encoding != "base64" {
		return engi.Errorf(engi.Invalid, "encoding_format: there is no %.40q", q.Encoding).WithRemedy("use float or base64")
	}
	texts, err := textOrTexts("input", q.Input)
	if err != nil {
		return engi.Errorf(engi.Invalid, "input: it is neither a text nor a list of texts").WithRemedy("send texts instead of tokens (LangChain: check_embedding_ctx_length=False)")
	}
	size := 0
	for i, t := range texts {
		if size += len(t); t == "" {
			return engi.Errorf(engi.Invalid, "input: text %d is empty", i).WithRemedy("leave it out")
		}
	}
	if len(texts) == 0 || len(texts) > maxTexts {
		return engi.Errorf(engi.Invalid, "input: %d texts, not 1 to %d", len(texts), maxTexts).WithRemedy("send them in several requests")
	}
	if size > maxTextBytes {
		return engi.TooLarge("input: the texts have %d bytes, %d at most", size, maxTextBytes).WithRemedy("send them in several requests")
	}
	vectors, err := service.Embed(ex.Context(), ex.Owner(), texts)
	if err != nil {
		return err
	}
	data := make([]any, len(vectors))
	for i, v := range vectors {
		if q.Dimensions != nil && *q.Dimensions != len(v) {
			return engi.Errorf(engi.Invalid, "dimensions: vectors of %s have %d", service.Name(), len(v)).WithRemedy("leave it out")
		}
		one := any(v)
		if q.Encoding == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			one = base64.StdEncoding.EncodeToString(raw)
		}
		data[i] = map[string]any{"object": "embedding", "index": i, "embedding": one}
	}
	tokens := size/4 + 1
	return ex.Reply(map[string]any{
		"object": "list", "model": service.Name(), "data": data, "usage": map[string]any{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}
