package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/engi-dev/engi/api/v1"
)

func ExampleClient_Mirror() {
	c, stop := connect()
	defer stop()
	m := must(c.Mirror(context.Background()))
	fmt.Println(m.Ecosystems[4].Name, m.Ecosystems[4].Hosts, m.Offline)
	// Output: npm [registry.npmjs.org registry.yarnpkg.com] true
}

func ExampleClient_WarmMirror() {
	c, stop := connect()
	defer stop()
	lock := v1.MirrorFile{Name: "requirements.txt", Content: "six==1.16.0\n"}
	for e, err := range c.WarmMirror(context.Background(), []v1.MirrorFile{lock}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Type, e.Package, e.Done, "of", e.Total, "failed:", e.Failed)
	}
	// This server is offline.

	// Output:
	// progress six==1.16.0 1 of 1 failed: 1
	// result  1 of 1 failed: 1
}

func ExampleClient_ClearMirror() {
	c, stop := connect()
	defer stop()
	if err := c.ClearMirror(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(must(c.Mirror(context.Background())).Files)
	// Output: 0
}
