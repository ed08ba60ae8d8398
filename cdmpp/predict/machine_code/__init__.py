"""The model over machine code: trees and a perceptron beside the cost model."""
