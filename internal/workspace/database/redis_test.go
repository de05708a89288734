package database_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestRedis(t *testing.T) {
	s := started(t, engi.ServiceRedis)
	for _, x := range []struct {
		command string
		want    string
	}{
		{"FLUSHALL", `"OK"`},
		{"SET k v", `"OK"`},
		{"GET k", `"v"`},
		{"GET nix", `null`},
		{"INCRBY n 9007199254740993", `"9007199254740993"`},
		{"INCR m", `1`},
		{"RPUSH l a b c", `3`},
		{"LRANGE l 0 -1", `["a","b","c"]`},
		{"HSET h f 1 g 2", `2`},
		{"HGETALL h", `{"f":"1","g":"2"}`},
		{"SADD s x", `1`},
		{"SMEMBERS s", `["x"]`},
		{"ZADD z 1.5 a", `1`},
		{"ZSCORE z a", `1.5`},
		{"ZADD z inf b", `1`},
		{"ZSCORE z b", `"inf"`},
		{"SET bin \xff\x00", `"OK"`},
		{"GET bin", `{"base64":"/wA="}`},
		{"NIX", `{"error":"ERR unknown command 'NIX', with args beginning with: "}`},
		{"LPUSH k x", `{"error":"WRONGTYPE Operation against a key holding the wrong kind of value"}`},
		{"EVAL return{1,{2,'x'},false} 0", `[1,[2,"x"],null]`},
		{"EVAL redis.setresp(3)return{double=0.5} 0", `0.5`},
		{"EVAL redis.setresp(3)return{map={[1]='a'}} 0", `[[1,"a"]]`},
		{"EVAL redis.setresp(3)return{set={a=true}} 0", `["a"]`},
		{"EVAL redis.setresp(3)return(1==1) 0", `true`},
		{"EVAL redis.setresp(3)return{big_number='123456789012345678901234567890'} 0", `"123456789012345678901234567890"`},
		{"EVAL redis.setresp(3)return{verbatim_string={format='txt',string='v'}} 0", `"v"`},
	} {
		got, err := s.Command(t.Context(), strings.Split(x.command, " "))
		if err != nil || string(got.Value) != x.want || got.Refused != strings.HasPrefix(x.want, `{"error"`) {
			t.Errorf("%s: got %s, refused %v, %v; want %s", x.command, got.Value, got.Refused, err, x.want)
		}
	}
}

func TestRedisLimits(t *testing.T) {
	s := started(t, engi.ServiceRedis)
	for _, command := range []string{"SUBSCRIBE x", "monitor", "client reply off", "SHUTDOWN"} {
		if _, err := s.Command(t.Context(), strings.Fields(command)); !engi.Is(err, engi.Unsupported) {
			t.Errorf("%s: %v", command, err)
		}
	}
	for _, command := range [][]string{nil, {""}, {"SET", "x", strings.Repeat("x", 2<<20)}} {
		if _, err := s.Command(t.Context(), command); !engi.Is(err, engi.Invalid) {
			t.Errorf("%.20q: %v", command, err)
		}
	}
	if _, err := s.Command(t.Context(), []string{"SETRANGE", "big", "3000000", "x"}); err != nil {
		t.Error(err)
	}
	if _, err := s.Command(t.Context(), []string{"GET", "big"}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("a large value: %v", err)
	}
	if _, err := s.Command(t.Context(), []string{"EVAL", "local t={} for i=1,200000 do t[i]='some value' end return t", "0"}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("many values: %v", err)
	}
	for _, command := range [][]string{{"BLPOP", "nix", "0"}, {"EVAL", "while true do end", "0"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := s.Command(ctx, command); !engi.Is(err, engi.Expired) {
			t.Errorf("%s: %v", command, err)
		}
		cancel()
		if got, err := s.Command(t.Context(), []string{"PING"}); err != nil || string(got.Value) != `"PONG"` {
			t.Errorf("after %s: %s, %v", command, got.Value, err)
		}
	}
	wrong := *s
	wrong.Password = "wr0ng-password"
	if _, err := wrong.Command(t.Context(), []string{"PING"}); !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), wrong.Password) {
		t.Errorf("with a wrong password: %v", err)
	}
}
