module flowerdb.dev/e2e/kube/pause

go 1.26
