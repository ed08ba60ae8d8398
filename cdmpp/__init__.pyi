from cdmpp import devices as devices
from cdmpp import testing as testing
from cdmpp.api.compare import Comparison as Comparison
from cdmpp.api.compare import LoadComparison as LoadComparison
from cdmpp.api.compare import compare as compare
from cdmpp.api.dataset import Dataset as Dataset
from cdmpp.api.measuring import Search as Search
from cdmpp.api.measuring import measure as measure
from cdmpp.api.measuring import search as search
from cdmpp.api.model import Model as Model
from cdmpp.api.model import load as load
from cdmpp.api.predictions import Predicted as Predicted
from cdmpp.api.predictions import Predictions as Predictions
from cdmpp.api.runs import Runs as Runs
from cdmpp.api.runs import runs as runs
from cdmpp.api.train import finetune as finetune
from cdmpp.api.train import train as train
from cdmpp.errors import CdmppError as CdmppError
from cdmpp.predict.explained import ExplainedAnswer as ExplainedAnswer

__version__: str
__all__: list[str]
