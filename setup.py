"""What pyproject.toml can't say: the folder data/, which a reader sees at the top, is
workbook/data/ in a wheel.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["workbook", "workbook.*"]), "workbook.data"],
    package_dir={"workbook.data": "data"},
)
