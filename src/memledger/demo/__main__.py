"""python -m memledger.demo"""

import sys

from memledger.demo import main

sys.exit(main(sys.argv[1:]))
