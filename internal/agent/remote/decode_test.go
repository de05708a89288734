package remote

import (
	"bytes"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// FuzzLineDecoder checks that messages do not depend on where the output of a
// program is split.
func FuzzLineDecoder(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\r\n"), 3, 40)
	f.Add([]byte("hello\n\n{\"half\":\n[]\nnull\n\x00\xff\n{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"m\",\"params\":[1]}"), 0, 9)
	f.Add(bytes.Repeat([]byte("x\n"), maxNoise+1), 1, 2)
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1e400,\"result\":1}\n{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{\"code\":1}}\n"), 1, 2)
	f.Fuzz(func(t *testing.T, data []byte, a, b int) {
		cut := func(n int) int { return min(max(n, 0), len(data)) }
		a, b = cut(a), cut(b)
		if a > b {
			a, b = b, a
		}
		whole, wholeErr := decodeLines(t, data)
		parts, partsErr := decodeLines(t, data[:a], data[a:b], data[b:])
		if len(whole) != len(parts) || (wholeErr == nil) != (partsErr == nil) {
			t.Fatalf("%d messages and %v in one, %d and %v in three", len(whole), wholeErr, len(parts), partsErr)
		}
		for i := range whole {
			if !bytes.Equal(whole[i], parts[i]) {
				t.Errorf("message %d: %s, %s", i, whole[i], parts[i])
			}
		}
	})
}

func decodeLines(t *testing.T, pieces ...[]byte) (all [][]byte, err error) {
	var f lineDecoder
	for _, piece := range pieces {
		for m, err := range f.next(bytes.Clone(piece)) {
			if err != nil {
				return all, err
			}
			raw, err := jsonrpc.EncodeMessage(m)
			if err != nil {
				t.Fatalf("a message cannot be encoded again: %v", err)
			}
			all = append(all, raw)
		}
	}
	return all, nil
}
