package client_test

import (
	"bytes"
	"context"
	"fmt"
	"image/png"

	"github.com/engi-dev/engi/api/v1"
)

func ExampleClient_CheckApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	fmt.Println(len(must(c.CheckApp(ctx, "shop")).Problems))
	// Output: 0
}

func ExampleClient_ScreenshotApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	image := must(c.ScreenshotApp(ctx, "shop", v1.ScreenshotRequest{Width: 390}))
	fmt.Println(must(png.Decode(bytes.NewReader(image))).Bounds().Dx())
	// Output: 390
}
