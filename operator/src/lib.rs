//! The controller for FlowerCluster resources.
