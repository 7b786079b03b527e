-- pump: run the grant loop, to go on where a call stopped at its bounds.

begin()
stirred = true
return finish()
