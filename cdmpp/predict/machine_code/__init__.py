"""The model over machine code: trees and perceptrons beside the cost model."""
