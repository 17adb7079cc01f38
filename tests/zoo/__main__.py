import sys

from tests.zoo import main

main(sys.argv[1:])
