"""The payload ct-realistic: samples grown from cases of KiTS19, or from phantoms like them."""
